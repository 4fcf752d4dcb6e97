//! Daemons of other versions: refused without harm, or understood as far as possible.

use baton_daemon::shim::{HIGHEST_VERSION, LOWEST_VERSION};
use baton_proto::worker::report::How;
use baton_proto::worker::{from_shim, to_shim};
use prost::Message;

use crate::shim_fixture::{ShimFixture, greeting, shell};

#[test]
fn a_daemon_without_a_common_version_is_refused() {
    let mut shim = ShimFixture::run("read line; echo $line");
    let mut newer = shim.connect();
    newer.send(greeting(HIGHEST_VERSION + 1, HIGHEST_VERSION + 5));
    let Some(from_shim::Message::Refused(refused)) = newer.receive() else {
        panic!("not refused")
    };
    assert_eq!(
        (refused.lowest_version, refused.highest_version),
        (LOWEST_VERSION, HIGHEST_VERSION)
    );
    assert_eq!(newer.receive(), None);
    // The earlier daemon is still connected.
    shim.wire.stdin(1, "go on\n", true);
    assert_eq!(shim.report().how, Some(How::ExitCode(0)));
    assert_eq!(shim.whole_text(), "go on\n");
}

#[test]
fn the_highest_common_version_is_used() {
    let mut shim = ShimFixture::start_silent(|_| {});
    shim.wire.send(greeting(0, HIGHEST_VERSION + 7));
    let Some(from_shim::Message::Presence(presence)) = shim.wire.receive() else {
        panic!("no presence")
    };
    assert_eq!(presence.version, HIGHEST_VERSION);
    assert!(presence.attempt_id.is_empty() && presence.started.is_none());
}

/// Field `number` with two bytes of content.
fn unknown_field(number: u32) -> Vec<u8> {
    let mut field = Vec::new();
    prost::encoding::encode_key(
        number,
        prost::encoding::WireType::LengthDelimited,
        &mut field,
    );
    field.extend([2, 0xab, 0xcd]);
    field
}

fn framed(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("short");
    [&length.to_be_bytes(), body].concat()
}

/// The message as a newer daemon would send it: with fields that this version does not know.
fn newer(field: u32, message: &impl Message) -> Vec<u8> {
    let mut body = message.encode_to_vec();
    body.extend(unknown_field(1_000));
    let mut outer = Vec::new();
    prost::encoding::encode_key(
        field,
        prost::encoding::WireType::LengthDelimited,
        &mut outer,
    );
    prost::encoding::encode_varint(body.len() as u64, &mut outer);
    outer.extend(body);
    outer.extend(unknown_field(2_000));
    framed(&outer)
}

#[test]
fn fields_and_messages_of_a_newer_daemon_are_ignored() {
    let mut shim = ShimFixture::start_silent(|_| {});
    let to_shim::Message::Greeting(hello) = greeting(1, 9) else {
        panic!("a greeting")
    };
    shim.wire.send_raw(&newer(1, &hello));
    assert!(matches!(
        shim.wire.receive(),
        Some(from_shim::Message::Presence(_))
    ));
    shim.wire.send_raw(&framed(&unknown_field(300)));
    shim.wire
        .send_raw(&newer(2, &shell("read line; echo $line")));
    shim.wire.send_raw(&framed(&unknown_field(300)));
    shim.wire.send_raw(&framed(&[]));
    shim.wire.stdin(1, "understood\n", true);
    assert_eq!(shim.report().how, Some(How::ExitCode(0)));
    assert_eq!(shim.whole_text(), "understood\n");
}

#[test]
fn invalid_bytes_close_only_the_connection() {
    let mut shim = ShimFixture::run("read line; echo $line");
    for noise in [&[0xff; 64][..], &[0, 0, 0, 4, 0xff, 0xff, 0xff, 0xff]] {
        let mut noisy = shim.connect();
        noisy.send_raw(noise);
        assert_eq!(noisy.receive(), None);
    }
    shim.wire.send_raw(&[0xff; 64]);
    while shim.wire.receive().is_some() {}
    shim.wire = shim.connect();
    shim.wire.greet();
    shim.wire.stdin(1, "still here\n", true);
    assert_eq!(shim.report().how, Some(How::ExitCode(0)));
}
