//! Decisions by rules: compared with simple models, and properties that hold for all rules in any
//! order.

#![allow(clippy::unwrap_used)]

use cloverleaf_access::{
    Grants, Operation, Operations, Pattern, Principal, Resource, ResourceKind, ResourceKinds, Rule,
    RuleEffect,
};
use proptest::prelude::*;
use regex::Regex;

const OPERATIONS: [Operation; 5] = [
    Operation::Publish,
    Operation::Consume,
    Operation::Declare,
    Operation::Describe,
    Operation::Administrate,
];
const KINDS: [ResourceKind; 5] = [
    ResourceKind::Topic,
    ResourceKind::Exchange,
    ResourceKind::Channel,
    ResourceKind::Group,
    ResourceKind::Broker,
];

fn who(name: &str) -> Principal {
    let name = name.to_owned();
    Principal { name }
}

fn topic(name: &str) -> Resource<'_> {
    Resource {
        namespace: "/",
        kind: ResourceKind::Topic,
        topic: "",
        name,
    }
}

fn channel<'a>(topic: &'a str, name: &'a str) -> Resource<'a> {
    Resource {
        namespace: "",
        kind: ResourceKind::Channel,
        topic,
        name,
    }
}

/// A rule about all resources.
fn all(effect: RuleEffect, operations: impl IntoIterator<Item = Operation>) -> Rule {
    Rule {
        effect,
        principals: Pattern::All,
        operations: operations.into_iter().collect(),
        namespaces: Pattern::All,
        kinds: ResourceKinds::ALL,
        topics: Pattern::All,
        names: vec![Pattern::All],
    }
}

#[test]
fn nothing_is_allowed_without_a_rule() {
    let none = Grants::default();
    let ann = who("ann");
    assert!(
        OPERATIONS
            .iter()
            .all(|it| !none.may(&ann, *it, &topic("t")))
    );
    let allowed = Grants::from_iter([all(RuleEffect::Allow, OPERATIONS)]);
    assert!(
        OPERATIONS
            .iter()
            .all(|it| allowed.may(&ann, *it, &topic("t")))
    );
    let denied = Grants::from_iter([all(RuleEffect::Deny, OPERATIONS)]);
    assert!(
        OPERATIONS
            .iter()
            .all(|it| !denied.may(&ann, *it, &topic("t")))
    );
}

#[test]
fn a_rule_applies_only_to_what_it_names() {
    let rule = Rule {
        principals: Pattern::Is("ann".into()),
        namespaces: Pattern::Is("/".into()),
        kinds: [ResourceKind::Topic].into_iter().collect(),
        names: vec![Pattern::Is("t".into()), Pattern::Prefix("logs.".into())],
        ..all(RuleEffect::Allow, [Operation::Publish])
    };
    let grants = Grants::from_iter([rule]);
    let may = |user, operation, resource| grants.may(&who(user), operation, &resource);
    let publish = Operation::Publish;
    assert!(may("ann", publish, topic("t")) && may("ann", publish, topic("logs.a")));
    assert!(
        may("ann", Operation::Describe, topic("t")),
        "who publishes sees it"
    );
    assert!(!may("ann", Operation::Consume, topic("t")));
    assert!(!may("bob", publish, topic("t")));
    assert!(!may("ann", publish, topic("t2")) && !may("ann", publish, topic("logs")));
    let elsewhere = Resource {
        namespace: "/other",
        ..topic("t")
    };
    assert!(!may("ann", publish, elsewhere));
    let exchange = Resource {
        kind: ResourceKind::Exchange,
        ..topic("t")
    };
    assert!(!may("ann", publish, exchange));
}

#[test]
fn a_denied_operation_does_not_deny_describe() {
    let denied = all(RuleEffect::Deny, [Operation::Publish]);
    let grants = Grants::from_iter([all(RuleEffect::Allow, OPERATIONS), denied]);
    let may = |operation| grants.may(&who("ann"), operation, &topic("t"));
    assert!(!may(Operation::Publish));
    assert!(may(Operation::Describe) && may(Operation::Consume));
    let blind = Grants::from_iter([
        all(RuleEffect::Allow, [Operation::Consume]),
        all(RuleEffect::Deny, [Operation::Describe]),
    ]);
    assert!(!blind.may(&who("ann"), Operation::Describe, &topic("t")));
    assert!(blind.may(&who("ann"), Operation::Consume, &topic("t")));
}

#[test]
fn invalid_expressions_are_refused() {
    let error = Pattern::regex("(").unwrap_err();
    assert!(error.to_string().starts_with("unable to compile \"(\": "));
    let large = Pattern::regex(r"(\pL{1000}){1000}").unwrap_err();
    assert!(large.to_string().contains("size limit"), "{large}");
    assert!(Rule::permissions("ann", "/", ["", "(", ""]).is_err());
}

/// One of few names, so that rules often apply to questions.
fn some_name() -> impl Strategy<Value = String> {
    "[ab]{0,2}"
}

fn some_pattern() -> impl Strategy<Value = Pattern> {
    prop_oneof![
        Just(Pattern::All),
        some_name().prop_map(Pattern::Is),
        some_name().prop_map(Pattern::Prefix),
        some_expression().prop_map(|it| Pattern::regex(&it).unwrap()),
    ]
}

fn some_expression() -> impl Strategy<Value = String> {
    prop::sample::select(&["", "a", "^a", "b$", "^$", ".*", "^(a|b)b?$", "[^a]"][..])
        .prop_map(str::to_owned)
}

fn some_of<T: Copy + std::fmt::Debug>(all: &'static [T]) -> impl Strategy<Value = Vec<T>> {
    prop::sample::subsequence(all, 0..=all.len())
}

fn some_rule() -> impl Strategy<Value = Rule> {
    let names = prop::collection::vec(some_pattern(), 0..3);
    let patterns = (some_pattern(), some_pattern(), some_pattern(), names);
    let effect =
        prop::sample::select(&[RuleEffect::Allow, RuleEffect::Allow, RuleEffect::Deny][..]);
    let sets = (effect, some_of(&OPERATIONS), some_of(&KINDS));
    (sets, patterns).prop_map(|((effect, operations, kinds), patterns)| {
        let (principals, namespaces, topics, names) = patterns;
        Rule {
            effect,
            principals,
            operations: operations.into_iter().collect(),
            namespaces,
            kinds: kinds.into_iter().collect(),
            topics,
            names,
        }
    })
}

fn some_rules() -> impl Strategy<Value = Vec<Rule>> {
    prop::collection::vec(some_rule(), 0..8)
}

#[derive(Debug, Clone)]
struct Question {
    who: Principal,
    operation: Operation,
    kind: ResourceKind,
    names: [String; 3],
}

fn some_question() -> impl Strategy<Value = Question> {
    let names = [some_name(), some_name(), some_name()];
    let operation = prop::sample::select(&OPERATIONS[..]);
    let kind = prop::sample::select(&KINDS[..]);
    (some_name(), operation, kind, names).prop_map(|(name, operation, kind, names)| Question {
        who: Principal { name },
        operation,
        kind,
        names,
    })
}

fn verdict(rules: &[Rule], question: &Question) -> bool {
    let [namespace, topic, name] = &question.names;
    let resource = Resource {
        namespace,
        kind: question.kind,
        topic,
        name,
    };
    let grants: Grants = rules.iter().cloned().collect();
    grants.may(&question.who, question.operation, &resource)
}

fn any_of(names: &[Regex], name: &str) -> bool {
    names.iter().any(|it| it.is_match(name))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// A rule that allows never removes a right, one that denies never adds one. Neither the order
    /// of rules nor their repetition matters.
    #[test]
    fn verdicts_are_monotone_and_have_no_order(
        (rules, shuffled) in some_rules()
            .prop_flat_map(|rules| (Just(rules.clone()), Just(rules).prop_shuffle())),
        more in some_rule(),
        question in some_question(),
    ) {
        let before = verdict(&rules, &question);
        prop_assert_eq!(verdict(&shuffled, &question), before);
        prop_assert_eq!(verdict(&[&*rules, &*shuffled].concat(), &question), before);
        let effect = more.effect;
        let after = verdict(&[rules, vec![more]].concat(), &question);
        match effect {
            RuleEffect::Allow => prop_assert!(after >= before),
            RuleEffect::Deny => prop_assert!(after <= before),
        }
    }

    /// A right to any operation includes Describe.
    #[test]
    fn a_right_to_any_operation_includes_describe(
        rules in some_rules(),
        question in some_question(),
    ) {
        let rules = rules.into_iter().filter(|rule| rule.effect == RuleEffect::Allow);
        let rules: Vec<Rule> = rules.collect();
        let describe = Question { operation: Operation::Describe, ..question.clone() };
        prop_assert!(!verdict(&rules, &question) || verdict(&rules, &describe));
    }

    /// Each of RabbitMQ's three expressions decides about its own operation.
    #[test]
    fn permissions_of_a_user_are_three_expressions(
        expressions in [some_expression(), some_expression(), some_expression()],
        name in some_name(),
        user in some_name(),
    ) {
        let [configure, write, read] = &expressions;
        let rules = Rule::permissions("a", "/", [configure, write, read]).unwrap();
        let grants = Grants::from_iter(rules);
        for (operation, expression) in [
            (Operation::Declare, configure),
            (Operation::Publish, write),
            (Operation::Consume, read),
        ] {
            let matches = match &**expression {
                "" => name.is_empty(),
                expression => Regex::new(expression).unwrap().is_match(&name),
            };
            let expected = user == "a" && matches;
            for kind in [ResourceKind::Topic, ResourceKind::Exchange] {
                let resource = Resource { kind, ..topic(&name) };
                prop_assert_eq!(grants.may(&who(&user), operation, &resource), expected);
            }
            prop_assert!(!grants.may(&who("a"), Operation::Administrate, &topic(&name)));
        }
    }

    /// NSQ's rules have a topic's expression, channels' expressions and permissions. A publish asks
    /// for the channel with the empty name.
    #[test]
    fn rules_of_an_auth_service_are_about_topics_and_channels(
        rules in prop::collection::vec(
            (
                some_expression(),
                prop::collection::vec(some_expression(), 0..3),
                some_of(&[Operation::Publish, Operation::Consume]),
            ),
            0..4,
        ),
        (topic, name) in (some_name(), some_name()),
    ) {
        let regex = |it: &String| Regex::new(it).unwrap();
        let pattern = |it: &String| Pattern::regex(it).unwrap();
        let grants: Grants = rules
            .iter()
            .map(|(topic, channels, operations)| Rule {
                operations: Operations::from_iter(operations.iter().copied()),
                kinds: [ResourceKind::Channel].into_iter().collect(),
                topics: pattern(topic),
                names: channels.iter().map(pattern).collect(),
                ..all(RuleEffect::Allow, [])
            })
            .collect();
        prop_assert_eq!(grants.count(), rules.len());
        for (operation, channel_name) in [(Operation::Publish, ""), (Operation::Consume, &*name)] {
            let expected = rules.iter().any(|(rule, channels, operations)| {
                let channels: Vec<Regex> = channels.iter().map(regex).collect();
                operations.contains(&operation)
                    && regex(rule).is_match(&topic)
                    && any_of(&channels, channel_name)
            });
            let it = channel(&topic, channel_name);
            prop_assert_eq!(grants.may(&who("me"), operation, &it), expected);
        }
    }
}
