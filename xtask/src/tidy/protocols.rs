//! A protocol costs the files that the page names: ARCHITECTURE.md, "How to add a protocol".

use std::collections::BTreeSet;
use std::path::Path;

use super::{Finding, Source};

const PAGE: &str = "ARCHITECTURE.md";
const HEADING: &str = "\n## How to add a protocol\n";

/// Most files that a protocol needs beside its own, its line in the list, and what people read.
const FILES_MAX: usize = 10;

/// The list, where each protocol has its line.
const LIST: &str = "crates/server/src/fronts/mod.rs";

/// The protocols of the product, by crate and tag.
const SPOKEN: &[(&str, &str)] = &[("nsq", "Nsq"), ("kafka", "Kafka"), ("amqp", "Amqp")];
/// The protocol of tests, which borrows a tag.
const ECHO: &str = "echo";

/// Files and folders that name single protocols and that a new one does not need, by why.
const OTHERS: &[(&str, &str)] = &[
    (
        "crates/lab",
        "programs that are slow by a protocol's own means",
    ),
    ("crates/workbench/src/lab.rs", "the broker beside them"),
    (
        "crates/bench/src/stories",
        "what is told of single protocols",
    ),
    (
        "crates/bench/src/command/fake.rs",
        "an example of a comparison",
    ),
    (
        "crates/bench/src/proxy/mod.rs",
        "Kafka's addresses, which a proxy exchanges",
    ),
    (
        "crates/doctor/src/advice/file.rs",
        "an example of a client, to try an advice on",
    ),
    (
        "crates/amqp/src/message/mod.rs",
        "the header that keeps a record's key",
    ),
    (
        "crates/server/src/config/mod.rs",
        "dead letters of single channels of NSQ",
    ),
    (
        "crates/server/src/config/docs.rs",
        "what a protocol's options are told beside",
    ),
    (
        "crates/server/src/config/load.rs",
        "dead letters of single channels of NSQ",
    ),
    (
        "crates/server/src/server.rs",
        "an option of NSQ that implies another",
    ),
    (
        "crates/server/src/admin/topics.rs",
        "names of topics and settings, which are those of NSQ and Kafka",
    ),
    (
        "crates/server/src/http/listener.rs",
        "NSQ's interface tells it what was published",
    ),
    ("crates/server/src/http/probe.rs", "the same"),
    (
        "crates/server/src/transport/mod.rs",
        "NSQ's compression of a connection",
    ),
    ("crates/server/src/lib.rs", "NSQ's escapes of a URL"),
    (
        "crates/server/src/process/panics.rs",
        "a vital thread of AMQP, by its name",
    ),
];

pub(super) fn check(sources: &[Source], findings: &mut Vec<Finding>) {
    let Some(page) = sources.iter().find(|it| it.path == Path::new(PAGE)) else {
        return;
    };
    let mut find = |what: String| findings.push(page.find(0, what));
    let named = named_files(&page.text, sources, &mut find);
    if named.len() > FILES_MAX {
        find(format!(
            "a protocol costs {} files beside its own, at most {FILES_MAX} may be: let one list \
             come from another",
            named.len()
        ));
    }
    let mut used: BTreeSet<&(&str, &str)> = BTreeSet::new();
    for source in sources.iter().filter(|it| is_code(it)) {
        let path = source.path.as_path();
        let all = SPOKEN.iter().chain(&[(ECHO, "Echo")]);
        let names: Vec<&str> = all
            .filter(|(name, tag)| !is_own(path, name) && names_it(source, name, tag))
            .map(|(name, _)| *name)
            .collect();
        let is_on_page = named.contains(path);
        let other = OTHERS.iter().find(|(other, _)| path.starts_with(other));
        used.extend(other.filter(|_| !names.is_empty()));
        if !names.is_empty() && !is_on_page && other.is_none() {
            find(format!(
                "\"How to add a protocol\" does not name {}, which names {}: ask the list of \
                 protocols or their fronts there",
                path.display(),
                names.join(", ")
            ));
        }
        let names_all = SPOKEN.iter().all(|(name, _)| names.contains(name));
        if is_on_page && !names_all {
            find(format!(
                "\"How to add a protocol\" names {}, which does not name every protocol",
                path.display()
            ));
        }
    }
    for (other, why) in OTHERS.iter().filter(|other| !used.contains(other)) {
        find(format!(
            "nothing in {other} names a protocol any more ({why}): take it out of \
             tidy/protocols.rs"
        ));
    }
}

/// The files that the page's section names, but for the list itself.
fn named_files<'a>(
    page: &str,
    sources: &'a [Source],
    find: &mut impl FnMut(String),
) -> BTreeSet<&'a Path> {
    let section = page.split_once(HEADING).map(|(_, rest)| rest);
    let section = section.and_then(|rest| rest.split("\n## ").next());
    let Some(section) = section else {
        find("it does not say how to add a protocol".to_owned());
        return BTreeSet::new();
    };
    // Code stands between every other pair of backticks.
    let quoted = section.split('`').skip(1).step_by(2);
    let files = quoted.filter(|it| it.ends_with(".rs") || it.ends_with(".toml"));
    let mut named = BTreeSet::new();
    for file in files {
        let paths = [Path::new("crates").join(file), Path::new(file).to_owned()];
        // The crate's own files, and those of a front's own folder, have no path from here.
        match sources.iter().find(|it| paths.contains(&it.path)) {
            Some(source) if source.path != Path::new(LIST) => {
                named.insert(source.path.as_path());
            }
            Some(_) => {}
            None if file.contains('/') => find(format!("there is no {file}")),
            None => {}
        }
    }
    named
}

/// Whether it belongs to the product, or says of what that is built.
fn is_code(source: &Source) -> bool {
    let path = &source.path;
    let is_shipped = source.is(&["rs", "toml"])
        && (path.starts_with("crates") || path == Path::new("Cargo.toml"));
    let is_test = path.iter().any(|it| it == "tests" || it == "examples")
        || path.to_string_lossy().ends_with("tests.rs")
        || path.ends_with("test_context.rs")
        || path.starts_with("crates/doctor/advice");
    is_shipped && !is_test || path == Path::new("xtask/src/tidy/edges.rs")
}

/// Whether it belongs to this protocol alone, or is the list.
fn is_own(path: &Path, name: &str) -> bool {
    let own = [
        format!("crates/{name}"),
        format!("crates/server/src/fronts/{name}"),
        format!("crates/bench/src/{name}"),
    ];
    own.iter().any(|own| path.starts_with(own)) || path == Path::new(LIST)
}

/// Whether code outside tests names the protocol's tag, crate, module or options.
fn names_it(source: &Source, name: &str, tag: &str) -> bool {
    let names = [
        format!("Protocol::{tag}"),
        format!("cloverleaf_{name}"),
        format!("cloverleaf-{name}"),
        format!("mod {name};"),
        format!("config.{name}."),
        format!("self.{name}."),
        format!("\"{name}\""),
        format!("\"{name}."),
        format!("\"{name}-"),
    ];
    // By habit tests stand at the end of a file.
    let lines = source.text.lines();
    let product = lines.take_while(|line| !line.starts_with("mod tests"));
    let mut code = product.filter(|line| !line.trim_start().starts_with("//"));
    code.any(|line| names.iter().any(|name| line.contains(name)))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// The findings about a page with such a section, where these files are all that is there.
    fn findings(section: &str, files: &[(&str, &str)]) -> Vec<String> {
        let source = |path: &str, text: String| Source {
            path: PathBuf::from(path),
            text,
        };
        let page = format!("# Page{HEADING}{section}\n## Next\n`none/src/none.rs`\n");
        let mut sources = vec![source(PAGE, page)];
        let files = files.iter();
        sources.extend(files.map(|(path, text)| source(path, (*text).to_owned())));
        // Each of `OTHERS` names a protocol here: one that does not is a finding of another kind.
        let others = OTHERS.iter();
        sources.extend(others.map(|(path, _)| {
            let path = Path::new(path).join("x.rs");
            source(&path.to_string_lossy(), "Protocol::Nsq".to_owned())
        }));
        let mut findings = Vec::new();
        check(&sources, &mut findings);
        findings.into_iter().map(|finding| finding.what).collect()
    }

    const ALL: &str = "Protocol::Nsq, Protocol::Kafka\n\"amqp.address\"\n";

    #[test]
    fn a_page_that_names_what_is_there_is_true() {
        let files = [
            ("crates/x/src/list.rs", ALL),
            (
                "crates/x/src/any.rs",
                "// Protocol::Nsq\nmod tests {\ncloverleaf_kafka\n}\n",
            ),
            ("crates/amqp/src/lib.rs", "Protocol::Amqp"),
            ("crates/x/tests/all.rs", ALL),
            (
                "Cargo.toml",
                "cloverleaf-nsq cloverleaf-kafka cloverleaf-amqp cloverleaf-echo",
            ),
        ];
        let page = "`x/src/list.rs`, `Front`, `connection.rs` and `Cargo.toml`";
        assert_eq!(findings(page, &files), [""; 0]);
        assert_eq!(
            findings("`Cargo.toml`", &files).len(),
            1,
            "one is not named"
        );
    }

    #[test]
    fn a_file_that_is_named_for_nothing_or_one_too_many_is_found() {
        let some = [("crates/x/src/some.rs", "Protocol::Nsq")];
        assert_eq!(findings("`x/src/some.rs`", &some).len(), 1);
        assert_eq!(
            findings("`x/src/gone.rs`", &[]),
            ["there is no x/src/gone.rs"]
        );
        let paths: Vec<String> = (0..11).map(|it| format!("crates/x/src/{it}.rs")).collect();
        let files: Vec<(&str, &str)> = paths.iter().map(|path| (path.as_str(), ALL)).collect();
        let page = |count| -> String { (0..count).map(|it| format!("`x/src/{it}.rs` ")).collect() };
        assert_eq!(findings(&page(10), &files[..10]), [""; 0]);
        assert_eq!(findings(&page(11), &files).len(), 1);
    }

    #[test]
    fn a_test_protocol_beyond_the_page_is_found() {
        let files = [("crates/x/src/lib.rs", "use cloverleaf_echo::Session;")];
        assert_eq!(findings("", &files).len(), 1);
    }
}
