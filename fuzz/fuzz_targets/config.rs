//! The configuration file.
#![no_main]

use cloverleaf_server::{Config, ConfigSources};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let path = std::env::temp_dir().join(format!("cloverleaf-fuzz-{}.toml", std::process::id()));
    if std::fs::write(&path, data).is_ok() {
        let sources = ConfigSources {
            file: Some(path),
            ..ConfigSources::default()
        };
        if let Ok(config) = Config::load(&sources) {
            assert!(config.entries().count() > 0);
        }
    }
});
