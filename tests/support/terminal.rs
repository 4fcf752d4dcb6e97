//! A command at a real terminal: it sees one on all three of its streams, what a person would see is collected, and keys
//! are typed. Ctrl-C is a key: the terminal makes the signal of it.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use tokio::process::Child;
use tokio::sync::watch;

use crate::patience::within;
use crate::processes::Baton;

#[derive(Debug)]
pub struct Terminal {
    /// The end that a person sits at.
    keys: File,
    seen: watch::Receiver<String>,
    /// How much of it was looked at.
    read: usize,
    child: Child,
}

impl Terminal {
    pub fn run(baton: Baton, data: &Path, arguments: &[&str]) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let keys = openpt(flags).expect("there are terminals");
        grantpt(&keys).expect("it is ours");
        unlockpt(&keys).expect("it is ours");
        let screen = ioctl_tiocgptpeer(&keys, flags).expect("it has another end");
        let stream = || screen.try_clone().expect("a descriptor can be copied");
        // A session of its own, whose terminal this is: otherwise a key could not become a signal.
        let mut command = baton.wrapped(data, &["setsid", "--ctty"]);
        command.args(arguments).env("TERM", "xterm");
        command
            .stdin(stream())
            .stdout(stream())
            .stderr(stream())
            .kill_on_drop(true);
        let child = command.spawn().expect("the executable can be started");
        let (show, seen) = watch::channel(String::new());
        let keys = File::from(keys);
        let view = keys.try_clone().expect("a descriptor can be copied");
        // Reading a terminal cannot be called off; it ends when the command has let go of the other end.
        std::thread::spawn(move || collect(view, &show));
        Self {
            keys,
            seen,
            read: 0,
            child,
        }
    }

    /// Waits until this is shown, behind all that was waited for before.
    pub async fn shows(&mut self, words: &str) {
        let read = self.read;
        let mut seen = self.seen.clone();
        let shown = seen.wait_for(|seen| seen[read..].contains(words));
        let seen = match tokio::time::timeout(crate::PATIENCE, shown).await {
            Ok(Ok(seen)) => seen.clone(),
            Ok(Err(_)) | Err(_) => panic!("{words:?} is not shown: {}", self.screen()),
        };
        let at = seen[read..].find(words).expect("it was found");
        self.read = read + at + words.len();
    }

    /// Everything that was ever shown.
    pub fn screen(&self) -> String {
        self.seen.borrow().clone()
    }

    pub fn types(&mut self, keys: &str) {
        let typed = self.keys.write_all(keys.as_bytes());
        typed.expect("the command has not let go of its terminal");
    }

    pub async fn ended(&mut self) -> Option<i32> {
        let ended = within("the command to end", self.child.wait()).await;
        ended.expect("it can be waited for").code()
    }
}

fn collect(mut view: File, show: &watch::Sender<String>) {
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
