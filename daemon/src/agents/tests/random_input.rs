//! Random bytes in random chunks: the events are the same for every chunking, and there is no
//! panic.

use proptest::prelude::*;

use crate::agents::adapter::agent_event::{AgentEvent, AgentExit, TurnOutcome};
use crate::agents::adapter::translator::AgentTranslator;
use crate::agents::launch::agent_launch::LaunchRequest;
use crate::config::AgentWire;

const AGENT_WIRES: [AgentWire; 4] = [
    AgentWire::Claude,
    AgentWire::CodexAppServer,
    AgentWire::CodexExec,
    AgentWire::Acp,
];

fn translator(kind: AgentWire, resume: bool) -> AgentTranslator {
    let request = LaunchRequest {
        prompt: "go".to_owned(),
        cwd: "/work".to_owned(),
        resume: resume.then(|| "abc".to_owned()),
        ..LaunchRequest::default()
    };
    kind.launch(&request).unwrap().translator
}

/// Plays the bytes as a daemon would: messages to the agent are written immediately.
fn translate_chunks(
    kind: AgentWire,
    resume: bool,
    chunks: &[&[u8]],
    exit: AgentExit,
) -> Vec<AgentEvent> {
    let mut translator = translator(kind, resume);
    let opening = translator.first_message();
    let mut all = translator.on_written(&opening.bytes);
    for chunk in chunks {
        translator.push_stdout(chunk);
        while let Some(events) = translator.next_events() {
            for event in events {
                let written = match &event {
                    AgentEvent::Write(message) => translator.on_written(&message.bytes),
                    _ => Vec::new(),
                };
                all.push(event);
                all.extend(written);
            }
        }
    }
    all.extend(translator.on_exit(exit, ""));
    all
}

/// Pieces of every wire, so that random input is often nearly valid.
const LINE_PIECES: [&str; 34] = [
    r#"{"type":"system","subtype":"init","session_id":"abc","model":"m"}"#,
    r#"{"type":"stream_event","event":{"type":"message_start","message":{"id":"m1"}}}"#,
    r#"{"type":"stream_event","event":{"type":"content_block_delta","delta":{"type":"text_delta","text":"hé"}}}"#,
    r#"{"type":"assistant","message":{"id":"m1","content":[{"type":"text","text":"hé"},{"type":"tool_use","id":"t1","name":"Bash","input":{}}]}}"#,
    r#"{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t1","content":"x","is_error":true}]}}"#,
    r#"{"type":"control_request","request_id":"r1","request":{"subtype":"can_use_tool","tool_name":"Bash","input":{"a":1}}}"#,
    r#"{"type":"control_request","request_id":"r2","request":{"subtype":"can_use_tool","tool_name":"AskUserQuestion","input":{"questions":[{"question":"q","options":[{"label":"a"}]}]}}}"#,
    r#"{"type":"control_cancel_request","request_id":"r1"}"#,
    r#"{"usage":{"input_tokens":1},"total_cost_usd":0.5,"subtype":"success","is_error":false,"result":"done","type":"result"}"#,
    r#"{"type":"thread.started","thread_id":"abc"}"#,
    r#"{"type":"thread.started","thread_id":"other"}"#,
    r#"{"type":"turn.started"}"#,
    r#"{"type":"item.started","item":{"id":"i1","type":"command_execution","command":"x","status":"in_progress"}}"#,
    r#"{"type":"item.completed","item":{"id":"i1","type":"command_execution","aggregated_output":"x","exit_code":1,"status":"failed"}}"#,
    r#"{"type":"turn.completed","usage":{"input_tokens":18446744073709551615,"cached_input_tokens":3}}"#,
    r#"{"type":"turn.failed","error":{"message":"unexpected status 429"}}"#,
    r#"{"id":0,"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true}}}"#,
    r#"{"id":1,"result":{"sessionId":"s","thread":{"id":"abc"}}}"#,
    r#"{"id":2,"result":{"turn":{"id":"u"},"stopReason":"end_turn","usage":null}}"#,
    r#"{"id":1,"error":{"code":-32002,"message":"no"}}"#,
    r#"{"id":2,"error":{"code":401}}"#,
    r#"{"method":"turn/started","params":{"turn":{"id":"u"}}}"#,
    r#"{"method":"item/started","params":{"item":{"id":"f","type":"fileChange","changes":[{"path":"x"}]}}}"#,
    r#"{"method":"item/fileChange/requestApproval","id":0,"params":{"itemId":"f"}}"#,
    r#"{"method":"item/agentMessage/delta","params":{"itemId":"m","delta":"x"}}"#,
    r#"{"method":"thread/tokenUsage/updated","params":{"turnId":"u","tokenUsage":{"total":{"inputTokens":5},"last":{"inputTokens":9}}}}"#,
    r#"{"method":"turn/completed","params":{"turn":{"status":"failed","error":{"codexErrorInfo":{"a":{"httpStatusCode":500}}}}}}"#,
    r#"{"method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"tool_call","toolCallId":"t","status":"pending"}}}"#,
    r#"{"method":"session/update","params":{"update":{"sessionUpdate":"tool_call_update","toolCallId":"t","status":"failed","content":[{"type":"content","content":{"type":"text","text":"x"}}]}}}"#,
    r#"{"id":0,"method":"session/request_permission","params":{"toolCall":{"toolCallId":"g"},"options":[{"kind":"reject_once","optionId":"n"}]}}"#,
    r#"{"id":1,"method":"elicitation/create","params":{"mode":"form","requestedSchema":{"properties":{"a":{"type":"string"}}}}}"#,
    r#"{"id":7,"method":"fs/read_text_file","params":{}}"#,
    "{\"type\":",
    "\u{7}not json \u{0}",
];

fn random_bytes() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        8 => prop::sample::select(&LINE_PIECES[..]).prop_map(|piece| format!("{piece}\n").into_bytes()),
        1 => prop::collection::vec(any::<u8>(), 0..40),
    ];
    prop::collection::vec(piece, 0..25).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn events_do_not_depend_on_the_chunking(
        bytes in random_bytes(),
        resume in any::<bool>(),
        code in prop_oneof![Just(0), Just(1), Just(143)],
        mut cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let mut at: Vec<usize> = cuts.drain(..).map(|cut| cut.index(bytes.len() + 1)).collect();
        at.extend([0, bytes.len()]);
        at.sort_unstable();
        let chunks: Vec<&[u8]> = at.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
        for kind in AGENT_WIRES {
            let exit = AgentExit::Code(code);
            let whole = translate_chunks(kind, resume, &[&bytes], exit);
            let cut = translate_chunks(kind, resume, &chunks, exit);
            prop_assert_eq!(&whole, &cut);
            prop_assert!(
                whole.iter().any(|event| matches!(event, AgentEvent::Ended(_))),
                "an agent that has exited has ended its turn"
            );
        }
    }
}

#[test]
fn an_incomplete_line_is_buffered_and_a_malformed_one_reported() {
    let mut claude = translator(AgentWire::Claude, false);
    claude.push_stdout(b"{\"type\":");
    assert_eq!((claude.next_events(), claude.buffered_bytes()), (None, 8));
    claude.push_stdout(b"1}\n\n[]\n");
    let odd: Vec<AgentEvent> = std::iter::from_fn(|| claude.next_events())
        .flatten()
        .collect();
    assert_eq!(odd, [1, 3].map(|line| AgentEvent::Malformed { line }));
    assert_eq!(claude.buffered_bytes(), 0);
}

#[test]
fn a_line_over_4_mib_is_cut_with_a_record_and_the_next_one_is_read() {
    let long = format!(
        "{{\"type\":\"{}\"}}\n",
        "x".repeat(crate::agents::adapter::line_splitter::MAX_LINE_BYTES)
    );
    let output = format!("{long}not json\n{}\n", LINE_PIECES[8]);
    for size in [1 << 16, output.len()] {
        let chunks: Vec<&[u8]> = output.as_bytes().chunks(size).collect();
        let events = translate_chunks(AgentWire::Claude, false, &chunks, AgentExit::Code(0));
        let length = long.len() as u64 - 1;
        assert!(events.contains(&AgentEvent::LineCut { length }));
        assert!(events.contains(&AgentEvent::Malformed { line: 2 }));
        assert!(matches!(events.last(), Some(AgentEvent::Ended(_))));
    }
}

#[test]
fn a_byte_order_mark_or_invalid_bytes_do_not_lose_a_message() {
    let output = [
        &b"\xef\xbb\xbf{\"type\":\"system\",\"subtype\":\"init\",\"session_id\":\"s\"}\r\n"[..],
        &b"{\"type\":\"result\",\"subtype\":\"success\",\"is_error\":false,\"result\":\"a\xffb \\ud83d\"}"[..],
    ];
    let events = translate_chunks(
        AgentWire::Claude,
        false,
        &[&output.concat()],
        AgentExit::Code(0),
    );
    let count = |is: fn(&AgentEvent) -> bool| events.iter().filter(|event| is(event)).count();
    assert_eq!(
        count(|event| matches!(event, AgentEvent::Malformed { .. })),
        0
    );
    assert_eq!(count(|event| *event == AgentEvent::Repaired { line: 2 }), 1);
    let ended = events.iter().find_map(|event| match event {
        AgentEvent::Ended(ending) => Some(ending.outcome.clone()),
        _ => None,
    });
    let result = "a\u{fffd}b \u{fffd}".to_owned();
    assert_eq!(ended, Some(TurnOutcome::Result(result)));
}

/// Events after these lines, in which every `x` is replaced by a text that is too long to be
/// read.
fn events_after_oversized_line(kind: AgentWire, resume: bool, lines: &[&str]) -> Vec<AgentEvent> {
    let long = "x".repeat(crate::agents::adapter::line_splitter::MAX_LINE_BYTES);
    let lines = lines.iter().map(|line| line.replace('x', &long) + "\n");
    let output: String = lines.collect();
    translate_chunks(kind, resume, &[output.as_bytes()], AgentExit::Code(0))
}

fn first_failure_code(events: &[AgentEvent]) -> Option<&'static str> {
    events.iter().find_map(|event| match event {
        AgentEvent::Ended(ending) => match &ending.outcome {
            TurnOutcome::Failed(failure) => Some(failure.code()),
            TurnOutcome::Result(_) | TurnOutcome::Interrupted => None,
        },
        _ => None,
    })
}

#[test]
fn an_oversized_message_leaves_no_request_open() {
    let thread = [
        r#"{"id":0,"result":{}}"#,
        r#"{"id":1,"result":{"thread":"x"}}"#,
    ];
    let ends = |resume| {
        let events = events_after_oversized_line(AgentWire::CodexAppServer, resume, &thread);
        first_failure_code(&events)
    };
    assert_eq!(ends(true), Some("resume_failed"));
    assert_eq!(ends(false), Some("output_invalid"));
    let session = [
        r#"{"id":0,"result":{"protocolVersion":1}}"#,
        r#"{"id":1,"result":{"sessionId":"s"}}"#,
        r#"{"method":"session/update","params":{"update":{"sessionUpdate":"x","id":2}}}"#,
        r#"{"id":9,"method":"session/request_permission","params":{"toolCall":"x"}}"#,
        r#"{"id":2,"result":{"stopReason":"x"}}"#,
    ];
    let events = events_after_oversized_line(AgentWire::Acp, false, &session);
    assert_eq!(first_failure_code(&events), Some("output_invalid"));
    let refused = |events: &[AgentEvent], id: &str| {
        let written = events.iter().filter_map(|event| match event {
            AgentEvent::Write(message) => Some(String::from_utf8_lossy(&message.bytes)),
            _ => None,
        });
        written
            .filter(|line| line.contains("error") && line.contains(id))
            .count()
    };
    assert_eq!(refused(&events, r#""id":9"#), 1);
    let request = [r#"{"type":"control_request","request_id":"r","request":{"input":"x"}}"#];
    let events = events_after_oversized_line(AgentWire::Claude, false, &request);
    assert_eq!(refused(&events, r#""request_id":"r""#), 1);
}

#[test]
fn closing_stdin_is_not_a_prompt() {
    let mut exec = translator(AgentWire::CodexExec, false);
    let opening = exec.first_message();
    exec.on_written(&opening.bytes);
    exec.push_stdout(b"{\"type\":\"turn.completed\"}\n");
    assert!(exec.next_events().is_some());
    assert_eq!(exec.on_written(b""), []);
    assert_eq!(
        exec.on_exit(AgentExit::Code(0), ""),
        [],
        "the turn ends only once"
    );
}
