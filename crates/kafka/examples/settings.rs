//! Writes `docs/kafka-settings.md` to the standard output.

fn main() {
    print!("{}", cloverleaf_kafka::control::settings_markdown());
}
