//! One session, from Rust: submit, be refused, steer, answer, stream and fork.
//!
//! `make test-rust` runs it against a server with the agent of `clients/examples/agents.toml`,
//! which asks where to go and repeats what it is told.

use std::error::Error;
use std::time::{Duration, SystemTime};

use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_types::StatusExt;

#[allow(clippy::all)]
mod v1 {
    tonic::include_proto!("runlane.v1");
}

use v1::history_service_client::HistoryServiceClient;
use v1::interaction_answer::Kind;
use v1::session_service_client::SessionServiceClient;
use v1::stream_events_request::Start;
use v1::stream_events_response::Frame;
use v1::submission::{Mode, State};

type Sessions = SessionServiceClient<Channel>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let target = std::env::var("RUNLANE_TARGET").unwrap_or("127.0.0.1:7480".into());
    let channel = Endpoint::from_shared(format!("http://{target}"))?.connect_lazy();
    let mut sessions = SessionServiceClient::new(channel.clone());
    let mut history = HistoryServiceClient::new(channel);
    let nanos = SystemTime::UNIX_EPOCH.elapsed()?.as_nanos();
    let session_id = format!("rust-{nanos}");

    let submitted = submit(
        &mut sessions,
        &session_id,
        "plan",
        "Plan a trip.",
        Mode::Start,
    )
    .await?;
    println!("submit: {}", submitted.state().as_str_name());
    follow(&mut sessions, &session_id).await?;
    print_messages(&mut history, &session_id, 0).await?;
    fork(&mut history, &submitted.run_id).await
}

/// A request with the deadline that each call needs.
fn timed<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(Duration::from_secs(30));
    request
}

fn text(text: &str) -> v1::Block {
    v1::Block {
        block: Some(v1::block::Block::Text(text.into())),
        ..Default::default()
    }
}

async fn submit(
    sessions: &mut Sessions,
    session_id: &str,
    name: &str,
    said: &str,
    mode: Mode,
) -> Result<v1::Submission, Status> {
    let request = v1::SubmitRequest {
        session_id: session_id.into(),
        content: vec![text(said)],
        mode: mode.into(),
        create_session: Some(v1::SessionSpec::default()),
        // The same id in each attempt: the input is taken once.
        request_id: format!("{session_id}-{name}"),
        ..Default::default()
    };
    let answer = sessions.submit(timed(request)).await?.into_inner();
    answer
        .submission
        .ok_or_else(|| Status::internal("no submission"))
}

/// Reads all events until the run has ended, and steers and answers when it asks.
async fn follow(sessions: &mut Sessions, session_id: &str) -> Result<(), Box<dyn Error>> {
    let request = v1::StreamEventsRequest {
        session_id: session_id.into(),
        start: Some(Start::AfterSequence(0)),
        ..Default::default()
    };
    let mut stream = sessions.stream_events(request).await?.into_inner();
    let mut last = 0;
    while let Some(response) = stream.message().await? {
        let Some(Frame::Batch(batch)) = response.frame else {
            continue;
        };
        for event in batch.events {
            assert_eq!(event.sequence, last + 1, "an event is missing");
            last = event.sequence;
            match event.body {
                Some(v1::event::Body::InteractionOpened(opened)) => {
                    speak(sessions, session_id, &event.run_id, &opened).await?;
                }
                Some(v1::event::Body::RunTerminal(_)) => {
                    println!("events: 1 to {last}");
                    return Ok(());
                }
                _ => {}
            }
        }
    }
    Err("the stream ended before the run".into())
}

async fn speak(
    sessions: &mut Sessions,
    session_id: &str,
    run_id: &str,
    opened: &v1::InteractionOpened,
) -> Result<(), Box<dyn Error>> {
    let busy = submit(sessions, session_id, "again", "Another trip?", Mode::Start).await;
    let refused = busy
        .err()
        .and_then(|status| status.get_details_error_info());
    println!("refused: {}", refused.ok_or("it was taken")?.reason);

    let steer = submit(
        sessions,
        session_id,
        "steer",
        "By train, please.",
        Mode::Steer,
    )
    .await?;
    assert_eq!(steer.state(), State::Pending);
    println!("steer: {}", steer.state().as_str_name());

    let answer = Kind::Question(v1::QuestionAnswer {
        text: "Paris".into(),
    });
    let request = v1::AnswerInteractionRequest {
        run_id: run_id.into(),
        interaction_id: opened.interaction_id.clone(),
        version: opened.version,
        answer: Some(v1::InteractionAnswer { kind: Some(answer) }),
        request_id: format!("{session_id}-answer"),
        ..Default::default()
    };
    let answered = sessions.answer_interaction(timed(request)).await?;
    let interaction = answered.into_inner().interaction.ok_or("no interaction")?;
    println!("answer: {}", interaction.state().as_str_name());
    Ok(())
}

async fn print_messages(
    history: &mut HistoryServiceClient<Channel>,
    session_id: &str,
    after_number: i64,
) -> Result<(), Box<dyn Error>> {
    let request = v1::StreamMessagesRequest {
        session_id: session_id.into(),
        after_number,
        ..Default::default()
    };
    let mut stream = history.stream_messages(timed(request)).await?.into_inner();
    while let Some(response) = stream.message().await? {
        for block in response.messages.into_iter().flat_map(|m| m.content) {
            if let Some(v1::block::Block::Text(text)) = block.block {
                println!("message: {text}");
            }
        }
    }
    Ok(())
}

/// Goes on from the end of the run in a session of its own.
async fn fork(
    history: &mut HistoryServiceClient<Channel>,
    run_id: &str,
) -> Result<(), Box<dyn Error>> {
    let request = v1::ForkSessionRequest {
        source: Some(v1::fork_session_request::Source::RunId(run_id.into())),
        input: Some(v1::ForkInput {
            content: vec![text("And back?")],
            ..Default::default()
        }),
        request_id: format!("{run_id}-fork"),
        ..Default::default()
    };
    let forked = history.fork_session(timed(request)).await?.into_inner();
    println!("fork: {} messages", forked.message_count);
    let run_id = forked.submission.ok_or("no submission")?.run_id;
    let request = v1::WaitRunRequest {
        run_id,
        wait_duration: Some(prost_types::Duration {
            seconds: 20,
            nanos: 0,
        }),
        include_output: true,
        ..Default::default()
    };
    let ended = history.wait_run(timed(request)).await?.into_inner();
    for block in ended.output.ok_or("it has not ended")?.content {
        if let Some(v1::block::Block::Text(text)) = block.block {
            println!("message: {text}");
        }
    }
    Ok(())
}
