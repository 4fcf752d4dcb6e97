//! `--require PATH[,min=SIZE][,sha256=HEX]`: a file that a task has to leave. Uses the relay's rules, so
//! that a typing error is reported without a call.

use baton_proto::v1::{ArtifactReceipt, CompletionContract, RequiredArtifact};
use baton_validation::{
    FileReceipt, RequiredFile, UnmetRequirement, check_path, unmet_requirements,
};

use crate::args::size;

/// Conditions follow the path, each after a comma. The path itself may contain commas.
pub(crate) fn parse(text: &str) -> Result<RequiredArtifact, String> {
    let mut required = RequiredArtifact::default();
    let mut path = text;
    while let Some((before, condition)) = path.rsplit_once(',') {
        if let Some(least) = condition.strip_prefix("min=") {
            required.min_size = Some(size::parse(least)?);
        } else if let Some(hash) = condition.strip_prefix("sha256=") {
            required.sha256 = parse_sha256(hash)?;
        } else if looks_like_condition(condition) {
            let hint = "the conditions are min=SIZE and sha256=HEX";
            return Err(format!("there is no condition {condition:?}; {hint}"));
        } else {
            break;
        }
        path = before;
    }
    check_path(path).map_err(|fault| fault.to_string())?;
    path.clone_into(&mut required.path);
    Ok(required)
}

/// Whether this is a mistyped condition. It would otherwise become part of a path that no file has.
fn looks_like_condition(text: &str) -> bool {
    let is_name = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric());
    text.split_once('=').is_some_and(|(name, _)| is_name(name))
}

/// Required files that these receipts do not prove, by the relay's rules.
pub(crate) fn unmet_contract_files(
    contract: &CompletionContract,
    seen: &[ArtifactReceipt],
) -> Vec<UnmetRequirement> {
    unmet_requirements(
        contract
            .required_artifacts
            .iter()
            .map(|wanted| RequiredFile {
                path: &wanted.path,
                min_size: wanted.min_size,
                sha256: non_empty(&wanted.sha256),
            }),
        seen.iter().map(|found| FileReceipt {
            path: &found.path,
            exists: found.exists,
            is_file: found.is_file,
            size: found.size,
            sha256: non_empty(&found.sha256),
            problem: non_empty(&found.problem),
        }),
    )
}

fn non_empty(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

fn parse_sha256(text: &str) -> Result<String, String> {
    let hash = text.to_ascii_lowercase();
    let good = hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit());
    good.then_some(hash)
        .ok_or_else(|| "write the SHA-256 as 64 hex digits".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_may_have_conditions_and_commas() {
        let hash = "AB".repeat(32);
        let text = format!("out/a,min=1KiB,sha256={hash}");
        let expected = RequiredArtifact {
            path: "out/a".to_owned(),
            min_size: Some(1024),
            sha256: hash.to_lowercase(),
        };
        assert_eq!(parse(&text), Ok(expected));
        let plain = RequiredArtifact {
            path: "a, b".to_owned(),
            ..RequiredArtifact::default()
        };
        assert_eq!(parse("a, b"), Ok(plain));
    }

    #[test]
    fn a_file_that_the_relay_would_refuse_is_refused() {
        for bad in [
            "",
            "/a",
            "../a",
            ".",
            "a,min=x",
            "a,sha256=12",
            ",min=1B",
            "x,mni=1KiB",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
