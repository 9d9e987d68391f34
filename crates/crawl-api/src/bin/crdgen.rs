//! Writes the CustomResourceDefinitions into a folder, `config/crd` unless another is named.
//! `make manifests` calls it.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args_os()
        .nth(1)
        .map_or_else(|| PathBuf::from("config/crd"), PathBuf::from);
    std::fs::create_dir_all(&dir)?;
    for crd in crawl_api::crds::crds() {
        let path = dir.join(crawl_api::crds::file_name(&crd));
        std::fs::write(path, crawl_api::crds::to_yaml(&crd)?)?;
    }
    Ok(())
}
