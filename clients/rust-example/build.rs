//! Makes the stubs from the protos; protox reads them, so no protoc is needed.

use std::error::Error;
use std::fs;
use std::path::PathBuf;

const PROTOS: &str = "../../proto";
const VENDORED: &str = "../../third_party/proto";

fn main() -> Result<(), Box<dyn Error>> {
    let mut files = Vec::<PathBuf>::new();
    for entry in fs::read_dir(format!("{PROTOS}/runlane/v1"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "proto") {
            files.push(path);
        }
    }
    files.sort();
    println!("cargo::rerun-if-changed={PROTOS}");
    let descriptors = protox::compile(&files, [PROTOS, VENDORED])?;
    tonic_prost_build::configure()
        .build_server(false)
        .compile_fds(descriptors)?;
    Ok(())
}
