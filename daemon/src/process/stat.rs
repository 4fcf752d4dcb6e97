//! Reads the process table from /proc. A process may vanish between any two reads; then it is simply
//! not there. Fields that are 0 because another pid namespace owns them stay 0 and match nothing.

use std::fs;

use super::ProcessId;

/// One line of the process table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessStat {
    pub(crate) id: ProcessId,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    pub(crate) session: i32,
    state: u8,
    threads: u32,
}

impl ProcessStat {
    /// Dead, only not yet waited for. A leader that ended while its threads go on is not.
    pub(crate) fn is_zombie(&self) -> bool {
        matches!(self.state, b'Z' | b'X') && self.threads <= 1
    }
}

/// All processes that can be seen now.
pub(crate) fn process_table() -> Vec<ProcessStat> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(read).collect()
}

pub(crate) fn read(pid: i32) -> Option<ProcessStat> {
    parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// The process that has this number now.
pub(crate) fn identity_of(pid: i32) -> Option<ProcessId> {
    read(pid).map(|stat| stat.id)
}

/// What the process was started with under this name. Of the dead nobody knows.
pub(super) fn variable(pid: i32, name: &str) -> Option<String> {
    let environ = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let value = environ
        .split(|byte| *byte == 0)
        .find_map(|variable| variable.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
    Some(String::from_utf8_lossy(value).into_owned())
}

/// The name in parentheses may hold spaces, parentheses, newlines and bytes that are not UTF-8, so
/// the fields are counted from the last closing parenthesis.
fn parse(line: &[u8]) -> Option<ProcessStat> {
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
        session: number(3)?,
        state: *fields.first()?.as_bytes().first()?,
        threads: fields.get(17)?.parse().ok()?,
    })
}

#[cfg(test)]
impl ProcessStat {
    pub(crate) fn sample(pid: i32, parent: i32, group: i32, session: i32, start: u64) -> Self {
        let id = ProcessId {
            pid,
            start_time: start,
        };
        Self {
            id,
            parent,
            group,
            session,
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
        let stat = parse(&line).unwrap();
        assert_eq!(
            stat.id,
            ProcessId {
                pid: 42,
                start_time: 77326
            }
        );
        assert_eq!((stat.parent, stat.group, stat.session), (7, 40, 39));
        assert!(stat.is_zombie());
        let threaded = ProcessStat { threads: 3, ..stat };
        assert!(!threaded.is_zombie());
        for broken in [&b""[..], b"42", b"42 (x", b"42 (x) S 1", b"x (y) S 1 2 3"] {
            assert_eq!(parse(broken), None);
        }
    }

    #[test]
    fn the_table_holds_this_process() {
        let own = i32::try_from(std::process::id()).unwrap();
        let stat = process_table()
            .into_iter()
            .find(|stat| stat.id.pid == own)
            .unwrap();
        assert_eq!(Some(stat.id), read(own).map(|stat| stat.id));
        assert!(!stat.is_zombie());
    }
}
