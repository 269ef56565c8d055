package dev.runlane.example;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.protobuf.Message;
import com.google.protobuf.util.JsonFormat;
import com.google.rpc.BadRequest;
import com.google.rpc.ErrorInfo;
import com.google.rpc.QuotaFailure;
import com.google.rpc.RetryInfo;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import java.util.stream.Collectors;
import runlane.v1.ExecutorServiceOuterClass.CommitRequest;
import runlane.v1.ExecutorServiceOuterClass.PollActivationResponse;
import runlane.v1.HistoryServiceOuterClass.ListMessagesResponse;
import runlane.v1.InteractionOuterClass.Interaction;
import runlane.v1.RunOuterClass.Run;
import runlane.v1.SessionOuterClass.Session;
import runlane.v1.SessionServiceOuterClass.GetLiveStateRequest;
import runlane.v1.SessionServiceOuterClass.StreamEventsRequest;
import runlane.v1.SessionServiceOuterClass.StreamEventsResponse;
import runlane.v1.SessionServiceOuterClass.SubmitRequest;
import runlane.v1.SessionServiceOuterClass.UpdateSessionRequest;
import runlane.v1.SubmissionOuterClass.Submission;

/** Reads each message of the golden file, which has it as JSON too, and writes the same again. */
public final class Golden {
  private static final Map<String, Message> MESSAGES =
      List.of(
              com.google.rpc.Status.getDefaultInstance(),
              CommitRequest.getDefaultInstance(),
              GetLiveStateRequest.getDefaultInstance(),
              Interaction.getDefaultInstance(),
              ListMessagesResponse.getDefaultInstance(),
              runlane.v1.MessageOuterClass.Message.getDefaultInstance(),
              PollActivationResponse.getDefaultInstance(),
              Run.getDefaultInstance(),
              Session.getDefaultInstance(),
              StreamEventsRequest.getDefaultInstance(),
              StreamEventsResponse.getDefaultInstance(),
              Submission.getDefaultInstance(),
              SubmitRequest.getDefaultInstance(),
              UpdateSessionRequest.getDefaultInstance())
          .stream()
          .map(Message.class::cast)
          .collect(
              Collectors.toMap(
                  one -> one.getDescriptorForType().getFullName(), Function.identity()));

  private static final JsonFormat.Printer PRINTER =
      JsonFormat.printer()
          .preservingProtoFieldNames()
          .usingTypeRegistry(
              JsonFormat.TypeRegistry.newBuilder()
                  .add(ErrorInfo.getDescriptor())
                  .add(BadRequest.getDescriptor())
                  .add(QuotaFailure.getDescriptor())
                  .add(RetryInfo.getDescriptor())
                  .build());

  private Golden() {}

  /** Takes the path of the golden file. */
  public static void main(String[] arguments) throws IOException {
    String text = Files.readString(Path.of(arguments[0]));
    int count = 0;
    for (JsonElement element : JsonParser.parseString(text).getAsJsonArray()) {
      check(element.getAsJsonObject());
      count++;
    }
    System.out.println("golden: " + count + " messages are read and written");
  }

  private static void check(JsonObject one) throws IOException {
    String name = one.get("name").getAsString();
    Message kind = MESSAGES.get(one.get("message").getAsString());
    expect(kind != null, name + ": its message is not known here: add it");
    byte[] data = Base64.getDecoder().decode(one.get("binary").getAsString());
    Message read = kind.getParserForType().parseFrom(data);
    JsonElement shown = JsonParser.parseString(PRINTER.print(read));
    expect(shown.equals(one.get("json")), name + " is read as " + shown);
    byte[] again = read.toByteArray();
    expect(
        again.length == data.length && kind.getParserForType().parseFrom(again).equals(read),
        name + " is written as another");
  }

  private static void expect(boolean holds, String otherwise) {
    if (!holds) {
      throw new AssertionError(otherwise);
    }
  }
}
