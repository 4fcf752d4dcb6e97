//! A command at a real terminal: it sees one on all three of its streams, what a person would see is collected, and keys
//! are typed. Ctrl-C is a key: the terminal makes the signal of it.

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
    /// The end that a person sits at.
    keyboard: File,
    shown_text: watch::Receiver<String>,
    /// How much of it was looked at.
    read_length: usize,
    child: Child,
}

impl PseudoTerminal {
    pub fn run(baton: BatonExecutable, data: &Path, arguments: &[&str]) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let keys = openpt(flags).expect("there are terminals");
        grantpt(&keys).expect("it is ours");
        unlockpt(&keys).expect("it is ours");
        let screen = ioctl_tiocgptpeer(&keys, flags).expect("it has another end");
        let stream = || screen.try_clone().expect("a descriptor can be copied");
        // A session of its own, whose terminal this is: otherwise a key could not become a signal.
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
        // Reading a terminal cannot be called off; it ends when the command has let go of the other end.
        std::thread::spawn(move || collect_output(view, &show));
        Self {
            keyboard,
            shown_text,
            read_length: 0,
            child,
        }
    }

    /// Waits until this is shown, behind all that was waited for before.
    pub async fn wait_for_text(&mut self, words: &str) {
        let read = self.read_length;
        let mut seen = self.shown_text.clone();
        let shown = seen.wait_for(|seen| seen[read..].contains(words));
        let seen = match tokio::time::timeout(crate::TEST_TIMEOUT, shown).await {
            Ok(Ok(seen)) => seen.clone(),
            Ok(Err(_)) | Err(_) => panic!("{words:?} is not shown: {}", self.screen()),
        };
        let at = seen[read..].find(words).expect("it was found");
        self.read_length = read + at + words.len();
    }

    /// Everything that was ever shown.
    pub fn screen(&self) -> String {
        self.shown_text.borrow().clone()
    }

    pub fn type_keys(&mut self, keys: &str) {
        let typed = self.keyboard.write_all(keys.as_bytes());
        typed.expect("the command has not let go of its terminal");
    }

    pub async fn wait_for_exit(&mut self) -> Option<i32> {
        let ended = wait_within("the command to end", self.child.wait()).await;
        ended.expect("it can be waited for").code()
    }
}

fn collect_output(mut view: File, show: &watch::Sender<String>) {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    // A terminal whose other end is closed is an error, and the end.
    while let Ok(count @ 1..) = view.read(&mut buffer) {
        bytes.extend_from_slice(&buffer[..count]);
        // A character may be cut by the end of what was read so far; then the rest shows with the next piece.
        let whole = match std::str::from_utf8(&bytes) {
            Ok(whole) => whole,
            Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
        };
        show.send_replace(whole.to_owned());
    }
}
