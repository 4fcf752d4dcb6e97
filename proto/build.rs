//! Compiles `baton/v1/*.proto` without protoc into Rust types, the descriptor set for
//! reflection, and the table of short enum names.

use std::{env, error::Error, fmt::Write as _, fs, path::Path};

use prost::Message;
use tonic_prost_build::FileDescriptorSet;

const FILES: [&str; 13] = [
    "baton/v1/agents.proto",
    "baton/v1/attempt_frames.proto",
    "baton/v1/common.proto",
    "baton/v1/data.proto",
    "baton/v1/fleet.proto",
    "baton/v1/inputs.proto",
    "baton/v1/link.proto",
    "baton/v1/operator.proto",
    "baton/v1/progress.proto",
    "baton/v1/records.proto",
    "baton/v1/settings.proto",
    "baton/v1/spec.proto",
    "baton/v1/tasks.proto",
];

const WORKER_FILES: [&str; 4] = [
    "baton/worker/v1/fold.proto",
    "baton/worker/v1/outbox.proto",
    "baton/worker/v1/shim.proto",
    "baton/worker/v1/tools.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=baton");
    let out = env::var("OUT_DIR")?;
    let out = Path::new(&out);
    let mut compiler = protox::Compiler::new(["."])?;
    compiler.include_source_info(true).include_imports(true);
    compiler.open_files(FILES)?;
    // protox's own encoding keeps parts that prost-types cannot represent.
    fs::write(
        out.join("baton_descriptor.bin"),
        compiler.encode_file_descriptor_set(),
    )?;
    let files = FileDescriptorSet::decode(compiler.encode_file_descriptor_set().as_slice())?;
    fs::write(out.join("short_names.rs"), short_names(&files)?)?;
    generate(files)?;
    generate_worker(out)?;
    Ok(())
}

/// Messages that a daemon exchanges or stores on its own machine. They are not part of the wire
/// protocol, so they get no descriptors and no services.
fn generate_worker(out: &Path) -> Result<(), Box<dyn Error>> {
    let files = protox::compile(WORKER_FILES, ["."])?;
    let files = FileDescriptorSet::decode(files.encode_to_vec().as_slice())?;
    // A separate directory: imported wire messages are generated again and would overwrite the
    // first output.
    let worker_dir = out.join("worker");
    fs::create_dir_all(&worker_dir)?;
    tonic_prost_build::configure()
        .out_dir(worker_dir)
        .bytes(".baton.worker.v1")
        .extern_path(".baton.v1", "crate::v1")
        .compile_fds(files)?;
    Ok(())
}

fn generate(files: FileDescriptorSet) -> std::io::Result<()> {
    let mut config = tonic_prost_build::Config::new();
    config.enable_type_names();
    tonic_prost_build::configure()
        .bytes(".baton.v1")
        // Sorted maps have one encoding, so equal bodies have equal bytes.
        .btree_map(".baton.v1")
        // Written by hand, so that no secret reaches a log through `{:?}`.
        .skip_debug([".baton.v1.LeaseToken", ".baton.v1.Secret"])
        // An rpc that is not implemented returns UNIMPLEMENTED.
        .generate_default_stubs(true)
        .compile_fds_with_config(files, config)
}

/// One `ShortName` impl per enum, and one table over all of them for the JSON writer.
fn short_names(files: &FileDescriptorSet) -> Result<String, std::fmt::Error> {
    let mut impls = String::new();
    let mut table = String::new();
    for file in files
        .file
        .iter()
        .filter(|file| file.package() == "baton.v1")
    {
        for names in &file.enum_type {
            let name = names.name();
            let prefix = format!("{}_", screaming_snake(name));
            writeln!(impls, "impl crate::ShortName for {name} {{")?;
            writeln!(
                impls,
                "    const NAMES: &'static [(i32, &'static str)] = &["
            )?;
            for value in &names.value {
                let short = value
                    .name()
                    .strip_prefix(&prefix)
                    .unwrap_or(value.name())
                    .to_lowercase();
                writeln!(impls, "        ({}, \"{short}\"),", value.number())?;
            }
            writeln!(impls, "    ];\n}}")?;
            writeln!(
                table,
                "    (\"baton.v1.{name}\", <{name} as crate::ShortName>::NAMES),"
            )?;
        }
    }
    Ok(format!(
        "{impls}\n/// Short names of every enum, by full name.\npub(crate) const ENUM_NAMES: &[(&str, &[(i32, &str)])] = &[\n{table}];\n"
    ))
}

fn screaming_snake(name: &str) -> String {
    let mut out = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.push(letter.to_ascii_uppercase());
    }
    out
}
