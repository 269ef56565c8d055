package dev.runlane.example;

import com.google.gson.Gson;
import com.google.protobuf.Any;
import com.google.protobuf.Duration;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.ErrorInfo;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Iterator;
import java.util.Map;
import runlane.v1.EventOuterClass.Event;
import runlane.v1.EventOuterClass.InteractionOpened;
import runlane.v1.HistoryServiceGrpc;
import runlane.v1.HistoryServiceGrpc.HistoryServiceBlockingStub;
import runlane.v1.HistoryServiceOuterClass.ForkInput;
import runlane.v1.HistoryServiceOuterClass.ForkSessionRequest;
import runlane.v1.HistoryServiceOuterClass.ForkSessionResponse;
import runlane.v1.HistoryServiceOuterClass.StreamMessagesRequest;
import runlane.v1.HistoryServiceOuterClass.WaitRunRequest;
import runlane.v1.InteractionOuterClass.Interaction;
import runlane.v1.InteractionOuterClass.InteractionAnswer;
import runlane.v1.InteractionOuterClass.QuestionAnswer;
import runlane.v1.MessageOuterClass.Block;
import runlane.v1.MessageOuterClass.Message;
import runlane.v1.SessionServiceGrpc;
import runlane.v1.SessionServiceGrpc.SessionServiceBlockingStub;
import runlane.v1.SessionServiceOuterClass.AnswerInteractionRequest;
import runlane.v1.SessionServiceOuterClass.SessionSpec;
import runlane.v1.SessionServiceOuterClass.StreamEventsRequest;
import runlane.v1.SessionServiceOuterClass.StreamEventsResponse;
import runlane.v1.SessionServiceOuterClass.SubmitRequest;
import runlane.v1.SubmissionOuterClass.Submission;

/**
 * One session, from Java: submit, be refused, steer, answer, stream and fork.
 *
 * <p>{@code make test-java} runs it against a server with the agent of {@code
 * clients/examples/agents.toml}, which asks where to go and repeats what it is told.
 */
public final class Example {
  private final SessionServiceBlockingStub sessions;
  private final HistoryServiceBlockingStub history;
  private final String sessionId = "java-" + System.nanoTime();

  private Example(ManagedChannel channel) {
    sessions = SessionServiceGrpc.newBlockingStub(channel);
    history = HistoryServiceGrpc.newBlockingStub(channel);
  }

  /** Runs it; the argument is the path of {@code clients/service_config.json}. */
  public static void main(String[] arguments) throws IOException {
    String target = System.getenv().getOrDefault("RUNLANE_TARGET", "127.0.0.1:7480");
    // Deadlines of all calls, and repeats of those that read: the client needs no more.
    Map<String, ?> config = new Gson().fromJson(Files.readString(Path.of(arguments[0])), Map.class);
    ManagedChannel channel =
        ManagedChannelBuilder.forTarget(target)
            .usePlaintext()
            .defaultServiceConfig(config)
            .enableRetry()
            .build();
    try {
      new Example(channel).run();
    } finally {
      channel.shutdownNow();
    }
  }

  private void run() {
    Submission submitted = submit("plan", "Plan a trip.", Submission.Mode.MODE_START);
    System.out.println("submit: " + submitted.getState());
    follow();
    history
        .streamMessages(StreamMessagesRequest.newBuilder().setSessionId(sessionId).build())
        .forEachRemaining(frame -> frame.getMessagesList().forEach(Example::print));
    fork(submitted.getRunId());
  }

  private Submission submit(String name, String text, Submission.Mode mode) {
    SubmitRequest request =
        SubmitRequest.newBuilder()
            .setSessionId(sessionId)
            .addContent(Block.newBuilder().setText(text))
            .setMode(mode)
            .setCreateSession(SessionSpec.getDefaultInstance())
            // The same id in each attempt: the input is taken once.
            .setRequestId(sessionId + "-" + name)
            .build();
    return sessions.submit(request).getSubmission();
  }

  /** Reads all events until the run has ended, and steers and answers when it asks. */
  private void follow() {
    Iterator<StreamEventsResponse> frames =
        sessions.streamEvents(
            StreamEventsRequest.newBuilder().setSessionId(sessionId).setAfterSequence(0).build());
    long last = 0;
    while (frames.hasNext()) {
      for (Event event : frames.next().getBatch().getEventsList()) {
        if (event.getSequence() != last + 1) {
          throw new IllegalStateException("an event is missing after " + last);
        }
        last = event.getSequence();
        if (event.hasInteractionOpened()) {
          speak(event.getRunId(), event.getInteractionOpened());
        } else if (event.hasRunTerminal()) {
          System.out.println("events: 1 to " + last);
          return;
        }
      }
    }
    throw new IllegalStateException("the stream ended before the run");
  }

  private void speak(String runId, InteractionOpened opened) {
    try {
      submit("again", "Another trip?", Submission.Mode.MODE_START);
      throw new IllegalStateException("it was taken");
    } catch (StatusRuntimeException refused) {
      System.out.println("refused: " + reason(refused));
    }
    Submission steer = submit("steer", "By train, please.", Submission.Mode.MODE_STEER);
    System.out.println("steer: " + steer.getState());

    InteractionAnswer answer =
        InteractionAnswer.newBuilder()
            .setQuestion(QuestionAnswer.newBuilder().setText("Paris"))
            .build();
    Interaction answered =
        sessions
            .answerInteraction(
                AnswerInteractionRequest.newBuilder()
                    .setRunId(runId)
                    .setInteractionId(opened.getInteractionId())
                    .setVersion(opened.getVersion())
                    .setAnswer(answer)
                    .setRequestId(sessionId + "-answer")
                    .build())
            .getInteraction();
    System.out.println("answer: " + answered.getState());
  }

  /** Goes on from the end of the run in a session of its own. */
  private void fork(String runId) {
    ForkSessionResponse forked =
        history.forkSession(
            ForkSessionRequest.newBuilder()
                .setRunId(runId)
                .setInput(ForkInput.newBuilder().addContent(Block.newBuilder().setText("And back?")))
                .setRequestId(sessionId + "-fork")
                .build());
    System.out.println("fork: " + forked.getMessageCount() + " messages");
    print(
        history
            .waitRun(
                WaitRunRequest.newBuilder()
                    .setRunId(forked.getSubmission().getRunId())
                    .setWaitDuration(Duration.newBuilder().setSeconds(20))
                    .setIncludeOutput(true)
                    .build())
            .getOutput());
  }

  private static void print(Message message) {
    for (Block block : message.getContentList()) {
      if (block.hasText()) {
        System.out.println("message: " + block.getText());
      }
    }
  }

  /** The reason of an error: the part of it that is contract. */
  private static String reason(StatusRuntimeException error) {
    try {
      for (Any detail : StatusProto.fromThrowable(error).getDetailsList()) {
        if (detail.is(ErrorInfo.class)) {
          return detail.unpack(ErrorInfo.class).getReason();
        }
      }
    } catch (InvalidProtocolBufferException malformed) {
      throw new IllegalStateException(malformed);
    }
    // No ErrorInfo: it came from the transport.
    throw error;
  }
}
