//! Any bytes as a field table: as a queue's arguments, and as the headers that a binding looks at.
#![no_main]

use cloverleaf_amqp::queue_arguments::QueueArguments;
use cloverleaf_amqp::routing::{
    Binding, Destination, ExchangeOptions, ExchangeType, RoutedMessage, Topology,
};
use cloverleaf_amqp::wire::Table;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: (Vec<u8>, Vec<u8>)| {
    let (Ok(arguments), Ok(headers)) = (Table::check(&data.0), Table::check(&data.1)) else {
        return;
    };
    let _ = QueueArguments::read("q", arguments);
    let _ = Topology::check_arguments(ExchangeType::Headers, arguments);
    let mut topology = Topology::default();
    for kind in [
        ExchangeType::Direct,
        ExchangeType::Topic,
        ExchangeType::Headers,
    ] {
        let options = ExchangeOptions {
            kind,
            delays: false,
            durable: false,
            auto_delete: false,
            internal: false,
            alternate: None,
            arguments: Vec::new(),
        };
        topology.declare(kind.name(), options);
        let binding = Binding {
            destination: Destination::Queue("q".into()),
            key: "k".into(),
            arguments: data.0.clone().into(),
        };
        let _ = topology.bind(kind.name(), binding);
        let message = RoutedMessage { key: "", headers };
        let routing = topology.route(kind.name(), &message);
        assert!(routing.is_some_and(|routing| routing.queues.len() <= 1));
    }
});
