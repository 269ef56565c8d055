//! Reads each message of the golden file, and writes the same again.
//!
//! What they hold is in `conformance/golden/wire.json`, as bytes and as JSON; here a few fields
//! stand for what a language may get wrong: numbers beyond 2^53, what is empty and what is absent,
//! characters of several code points.

use std::error::Error;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use prost::Message;

#[allow(clippy::all, dead_code)]
mod v1 {
    tonic::include_proto!("runlane.v1");
}

type Outcome = Result<(), Box<dyn Error>>;

fn main() -> Outcome {
    let path = std::env::args().nth(1).ok_or("usage: golden WIRE.json")?;
    let cases: serde_json::Value = serde_json::from_slice(&std::fs::read(path)?)?;
    let cases = cases.as_array().ok_or("no list")?;
    for case in cases {
        let name = case["name"].as_str().ok_or("no name")?;
        let data = BASE64_STANDARD.decode(case["binary"].as_str().ok_or("no bytes")?)?;
        check(case["message"].as_str().ok_or("no message")?, name, &data)
            .map_err(|error| format!("{name}: {error}"))?;
    }
    println!("golden: {} messages are read and written", cases.len());
    Ok(())
}

fn check(message: &str, name: &str, data: &[u8]) -> Outcome {
    match message {
        "google.rpc.Status" => same::<tonic_types::Status>(data).map(drop),
        "runlane.v1.CommitRequest" => same::<v1::CommitRequest>(data).map(drop),
        "runlane.v1.GetLiveStateRequest" => same::<v1::GetLiveStateRequest>(data).map(drop),
        "runlane.v1.Interaction" => same::<v1::Interaction>(data).map(drop),
        "runlane.v1.ListMessagesResponse" => same::<v1::ListMessagesResponse>(data).map(drop),
        "runlane.v1.Message" => same::<v1::Message>(data).map(drop),
        "runlane.v1.PollActivationResponse" => same::<v1::PollActivationResponse>(data).map(drop),
        "runlane.v1.Run" => same::<v1::Run>(data).map(drop),
        "runlane.v1.Session" => {
            let read = same::<v1::Session>(data)?;
            expect(read.message_count == (1 << 53) + 1 && read.revision == i64::MAX)
        }
        "runlane.v1.StreamEventsRequest" => same::<v1::StreamEventsRequest>(data).map(drop),
        "runlane.v1.StreamEventsResponse" => same::<v1::StreamEventsResponse>(data).map(drop),
        "runlane.v1.Submission" => same::<v1::Submission>(data).map(drop),
        "runlane.v1.SubmitRequest" => {
            let read = same::<v1::SubmitRequest>(data)?;
            let texts: Vec<_> = read.content.iter().map(|one| one.block.as_ref()).collect();
            let text = |said: &str| v1::block::Block::Text(said.into());
            expect(
                name == "an_empty_message"
                    || texts == [Some(&text("hi 👩\u{200d}🚀")), Some(&text(""))],
            )
        }
        "runlane.v1.UpdateSessionRequest" => {
            let read = same::<v1::UpdateSessionRequest>(data)?;
            expect(read.display_name.as_deref() == Some("") && read.metadata_json.is_none())
        }
        other => Err(format!("{other} is not known here: add it").into()),
    }
}

/// Reads a message, and expects that what is written again holds the same. It may be shorter: an
/// empty value of a map need not be written.
fn same<M: Message + Default + PartialEq>(data: &[u8]) -> Result<M, Box<dyn Error>> {
    let read = M::decode(data)?;
    expect(M::decode(read.encode_to_vec().as_slice())? == read)?;
    Ok(read)
}

fn expect(holds: bool) -> Outcome {
    if holds {
        Ok(())
    } else {
        Err("is read or written as another".into())
    }
}
