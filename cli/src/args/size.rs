//! Sizes on the command line: `64MiB`, `10GiB`, or plain bytes.

/// Units that a size may end with; a plain number is bytes.
const UNITS: [(&str, u64); 5] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("B", 1),
];

pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let unit = UNITS.iter().find(|(unit, _)| text.ends_with(unit));
    let (number, times) = unit.map_or((text, 1), |(unit, times)| {
        (text[..text.len() - unit.len()].trim_end(), *times)
    });
    let number: Option<u64> = number.parse().ok();
    number
        .and_then(|number| number.checked_mul(times))
        .ok_or_else(|| "write a size like 512MiB or 10GiB".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_numbers_with_a_binary_unit() {
        assert_eq!(parse("10GiB"), Ok(10 << 30));
        assert_eq!(parse("64 MiB"), Ok(64 << 20));
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("7B"), Ok(7));
        for bad in ["", "MiB", "1.5GiB", "-1KiB", "10GB", "99999999999TiB"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
