//! Runs a command at a real pseudo terminal on all three streams, collects its screen output
//! and types keys. Ctrl-C is typed as a key, and the terminal turns it into a signal.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use tokio::process::Child;
use tokio::sync::watch;

use crate::servers::server_processes::BatonExecutable;
use crate::wait::wait_within;

#[derive(Debug)]
pub struct PseudoTerminal {
    /// The side of the terminal that a person uses.
    keyboard: File,
    shown_text: watch::Receiver<String>,
    /// Length of the output that was already matched.
    read_length: usize,
    child: Child,
}

impl PseudoTerminal {
    pub fn run(baton: BatonExecutable, data: &Path, arguments: &[&str]) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let keys = openpt(flags).expect("a pseudo terminal can be opened");
        grantpt(&keys).expect("the terminal belongs to this process");
        unlockpt(&keys).expect("the terminal belongs to this process");
        let screen = ioctl_tiocgptpeer(&keys, flags).expect("the terminal has another side");
        let stream = || screen.try_clone().expect("a descriptor can be copied");
        // A session with this controlling terminal. Without it, the terminal could not turn a
        // key into a signal.
        let mut command = baton.command_with_prefix(data, &["setsid", "--ctty"]);
        command.args(arguments).env("TERM", "xterm");
        command
            .stdin(stream())
            .stdout(stream())
            .stderr(stream())
            .kill_on_drop(true);
        let child = command.spawn().expect("the executable can be started");
        let (show, shown_text) = watch::channel(String::new());
        let keyboard = File::from(keys);
        let view = keyboard.try_clone().expect("a descriptor can be copied");
        // A read from a terminal cannot be cancelled. It ends when the command has closed the
        // other side.
        std::thread::spawn(move || collect_output(view, &show));
        Self {
            keyboard,
            shown_text,
            read_length: 0,
            child,
        }
    }

    /// Waits until this text is shown, after all text that was waited for before.
    pub async fn wait_for_text(&mut self, text: &str) {
        let read = self.read_length;
        let mut seen = self.shown_text.clone();
        let shown = seen.wait_for(|seen| seen[read..].contains(text));
        let seen = match tokio::time::timeout(crate::TEST_TIMEOUT, shown).await {
            Ok(Ok(seen)) => seen.clone(),
            Ok(Err(_)) | Err(_) => panic!("{text:?} is not shown: {}", self.screen()),
        };
        let at = seen[read..].find(text).expect("it was found");
        self.read_length = read + at + text.len();
    }

    /// All output since the start.
    pub fn screen(&self) -> String {
        self.shown_text.borrow().clone()
    }

    pub fn type_keys(&mut self, keys: &str) {
        let typed = self.keyboard.write_all(keys.as_bytes());
        typed.expect("the command still has its terminal open");
    }

    pub async fn wait_for_exit(&mut self) -> Option<i32> {
        let ended = wait_within("the command to end", self.child.wait()).await;
        ended.expect("the process can be waited for").code()
    }
}

fn collect_output(mut view: File, show: &watch::Sender<String>) {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    // Reading a terminal whose other side is closed is an error, which ends the loop.
    while let Ok(count @ 1..) = view.read(&mut buffer) {
        bytes.extend_from_slice(&buffer[..count]);
        // The buffer may end within a character. Then the rest is shown with the next read.
        let whole = match std::str::from_utf8(&bytes) {
            Ok(whole) => whole,
            Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
        };
        show.send_replace(whole.to_owned());
    }
}
