//! The doctor's advice: the built-in one, and the operator's own files.

use std::path::{Path, PathBuf};
use std::{fs, io};

use cloverleaf_doctor::{Advice, AdviceError};
use thiserror::Error;

/// Maximum size of a file: the built-in ones have 20 KiB.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Why the advice cannot be loaded.
#[derive(Debug, Error)]
pub enum AdviceFolderError {
    /// The folder, or a file in it, cannot be read.
    #[error("the doctor's advice {} cannot be read: {error}", path.display())]
    Unreadable {
        /// The file or folder that cannot be read.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A file is too large to be advice.
    #[error("the doctor's advice {} is larger than {FILE_BYTES_MAX} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The text of a file is not valid advice.
    #[error("in {}: {error}", folder.display())]
    Wrong {
        /// The folder of the file.
        folder: PathBuf,
        /// The error in the text, with the file's name.
        error: AdviceError,
    },
}

/// The built-in advice, and that of all `*.toml` files of `folder`, in the order of their names:
/// each adds a family of clients, or replaces the family of the same name.
///
/// # Errors
/// The first file that is not usable. It is an error because a broker with half of the advice would
/// mislead.
pub(crate) fn load(folder: Option<&Path>) -> Result<Advice, AdviceFolderError> {
    let mut advice = Advice::embedded();
    let Some(folder) = folder else {
        return Ok(advice);
    };
    for path in files(folder).map_err(|error| unreadable(folder, error))? {
        let size = fs::metadata(&path).map_err(|error| unreadable(&path, error))?;
        if size.len() > FILE_BYTES_MAX {
            return Err(AdviceFolderError::TooLarge { path });
        }
        let text = fs::read_to_string(&path).map_err(|error| unreadable(&path, error))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        advice
            .add(&name, &text)
            .map_err(|error| AdviceFolderError::Wrong {
                folder: folder.to_owned(),
                error,
            })?;
    }
    Ok(advice)
}

fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|it| it == "toml") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn unreadable(path: &Path, error: io::Error) -> AdviceFolderError {
    AdviceFolderError::Unreadable {
        path: path.to_owned(),
        error,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use cloverleaf_doctor::Client;
    use cloverleaf_telemetry::Protocol;

    use super::*;

    const OWN: &str = r#"
family = "own"
name = "our own client"
protocol = "nsq"

[[client]]
id = "own"
name = "our own client"
library = "own"
source = "our own repository"
"#;

    #[test]
    fn files_of_a_folder_are_added_and_others_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("own.toml"), OWN).unwrap();
        fs::write(folder.path().join("notes.md"), "not advice").unwrap();
        let client = Client {
            address: [10, 0, 0, 1].into(),
            protocol: Protocol::Nsq,
            library: "own".to_owned(),
            version: String::new(),
            client_id: String::new(),
            platform: String::new(),
        };
        let name = |advice: Advice| advice.library_name(&client).map(str::to_owned);
        let with_folder = load(Some(folder.path())).unwrap();
        assert_eq!(name(with_folder).as_deref(), Some("our own client"));
        assert_ne!(name(load(None).unwrap()).as_deref(), Some("our own client"));
    }

    #[test]
    fn errors_name_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let why = || load(Some(folder.path())).unwrap_err().to_string();
        fs::write(folder.path().join("other.toml"), OWN).unwrap();
        let place = folder.path().display().to_string();
        assert!(
            why().contains("other.toml") && why().contains(&place),
            "{}",
            why()
        );
        fs::write(folder.path().join("a.toml"), [0xff, 0xfe]).unwrap();
        assert!(why().contains("a.toml cannot be read"), "{}", why());
        let large = fs::File::create(folder.path().join("a.toml")).unwrap();
        large.set_len(FILE_BYTES_MAX + 1).unwrap();
        assert!(why().contains("larger"), "{}", why());
        let missing = folder.path().join("none");
        let why = load(Some(&missing)).unwrap_err().to_string();
        assert!(why.contains("none"), "{why}");
    }
}
