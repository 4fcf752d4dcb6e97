//! Reads the process table from /proc. A process may vanish between any two reads; it is then
//! treated as absent, like one that is hidden from this user. A read that fails for any other
//! reason is an error, because it does not show whether the process exists. Fields that are 0
//! because another pid namespace owns them stay 0 and match nothing.

use std::fs;
use std::io;

use rustix::io::Errno;

use super::ProcessId;

/// One line of the process table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessStat {
    pub(crate) id: ProcessId,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    state: u8,
    threads: u32,
}

impl ProcessStat {
    /// Dead and not yet reaped. A leader that exited while its threads go on is not a zombie.
    pub(crate) fn is_zombie(&self) -> bool {
        matches!(self.state, b'Z' | b'X') && self.threads <= 1
    }
}

/// All processes that are visible now.
pub(crate) fn process_table() -> io::Result<Vec<ProcessStat>> {
    let mut table = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let pid = entry?
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        if let Some(pid) = pid {
            table.extend(read(pid)?);
        }
    }
    Ok(table)
}

/// The process with this pid, if it is visible.
pub(crate) fn read(pid: i32) -> io::Result<Option<ProcessStat>> {
    let Some(line) = if_visible(fs::read(format!("/proc/{pid}/stat")))? else {
        return Ok(None);
    };
    let stat = parse_stat(&line).ok_or(io::ErrorKind::InvalidData)?;
    Ok(Some(stat))
}

/// The current process with this pid, if it can be read.
pub(crate) fn identity_of(pid: i32) -> Option<ProcessId> {
    read(pid).ok().flatten().map(|stat| stat.id)
}

/// The value of a variable that the process was started with. `None` for dead processes and for
/// those whose environment is not readable.
pub(crate) fn environment_variable(pid: i32, name: &str) -> io::Result<Option<String>> {
    let environ = environ(pid)?;
    let value = environ
        .split(|byte| *byte == 0)
        .find_map(|variable| variable.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
    Ok(value.map(|value| String::from_utf8_lossy(value).into_owned()))
}

/// When its first thread has ended, the environment is readable only through the other threads.
fn environ(pid: i32) -> io::Result<Vec<u8>> {
    let own = if_visible(fs::read(format!("/proc/{pid}/environ")))?.unwrap_or_default();
    if !own.is_empty() {
        return Ok(own);
    }
    let threads = if_visible(fs::read_dir(format!("/proc/{pid}/task")))?;
    for thread in threads.into_iter().flatten() {
        let of_thread = thread.and_then(|thread| fs::read(thread.path().join("environ")));
        if let Some(found) = if_visible(of_thread)?.filter(|found| !found.is_empty()) {
            return Ok(found);
        }
    }
    Ok(Vec::new())
}

/// `None` for a process that is gone or hidden; other errors remain errors.
pub(super) fn if_visible<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_not_visible(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_not_visible(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
    ) || Errno::from_io_error(error) == Some(Errno::SRCH)
}

/// The name in parentheses may contain spaces, parentheses, newlines and bytes that are not
/// UTF-8, so the fields are counted from the last closing parenthesis.
fn parse_stat(line: &[u8]) -> Option<ProcessStat> {
    let open = line.iter().position(|byte| *byte == b'(')?;
    let close = line.iter().rposition(|byte| *byte == b')')?;
    let pid = std::str::from_utf8(&line[..open])
        .ok()?
        .trim()
        .parse()
        .ok()?;
    let rest = std::str::from_utf8(line.get(close + 1..)?).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse().ok();
    Some(ProcessStat {
        id: ProcessId {
            pid,
            start_time: fields.get(19)?.parse().ok()?,
        },
        parent: number(1)?,
        group: number(2)?,
        state: *fields.first()?.as_bytes().first()?,
        threads: fields.get(17)?.parse().ok()?,
    })
}

#[cfg(test)]
impl ProcessStat {
    pub(crate) fn sample(pid: i32, parent: i32, group: i32, start: u64) -> Self {
        let id = ProcessId {
            pid,
            start_time: start,
        };
        Self {
            id,
            parent,
            group,
            state: b'S',
            threads: 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_spaces_parentheses_and_odd_bytes_do_not_shift_the_fields() {
        let mut line = b"42 (a) R 1 (\xff\n) Z 7 40 39 0 -1 4194304 100 0 1 0 ".to_vec();
        line.extend_from_slice(b"0 0 0 0 20 0 1 0 77326 3133440 368");
        let stat = parse_stat(&line).unwrap();
        assert_eq!(
            stat.id,
            ProcessId {
                pid: 42,
                start_time: 77326
            }
        );
        assert_eq!((stat.parent, stat.group), (7, 40));
        assert!(stat.is_zombie());
        let threaded = ProcessStat { threads: 3, ..stat };
        assert!(!threaded.is_zombie());
        for broken in [&b""[..], b"42", b"42 (x", b"42 (x) S 1", b"x (y) S 1 2 3"] {
            assert_eq!(parse_stat(broken), None);
        }
    }

    #[test]
    fn the_process_table_contains_this_process() {
        let own = i32::try_from(std::process::id()).unwrap();
        let table = process_table().unwrap();
        let stat = table.iter().find(|stat| stat.id.pid == own).unwrap();
        assert_eq!(Some(stat.id), identity_of(own));
        assert!(!stat.is_zombie());
    }

    #[test]
    fn a_missing_process_is_absent_and_a_failed_read_is_an_error() {
        assert_eq!(read(i32::MAX).unwrap(), None);
        assert_eq!(environment_variable(i32::MAX, "PATH").unwrap(), None);
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::IO] {
            if_visible::<()>(Err(errno.into())).unwrap_err();
        }
        for errno in [Errno::NOENT, Errno::SRCH, Errno::ACCESS, Errno::PERM] {
            assert_eq!(if_visible::<()>(Err(errno.into())).unwrap(), None);
        }
    }
}
