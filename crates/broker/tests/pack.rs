//! Folders of busy brokers, each packed into one file, without the zeros at the end of each file:
//!
//! ```text
//! { path length u16, path, size u32, length u32, bytes [length] }*     big endian
//! ```
//!
//! The server's tests include this file too.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

/// Unpacks a file, whose path is relative to this package, into a folder.
pub(crate) fn unpack(pack: &str, to: &Path) {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pack = fs::read(package.join(pack)).unwrap();
    let mut rest = pack.as_slice();
    let mut take = |bytes: usize| rest.split_off(..bytes).unwrap_or_default();
    let number = |bytes: &[u8]| {
        bytes
            .iter()
            .fold(0, |sum, byte| sum << 8 | usize::from(*byte))
    };
    loop {
        let length = take(2);
        if length.is_empty() {
            break;
        }
        let path = to.join(str::from_utf8(take(number(length))).unwrap());
        let (size, length) = (number(take(4)), number(take(4)));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, take(length)).unwrap();
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_len(size as u64).unwrap();
    }
}
