import { create, ScalarType, toBinary, type DescField, type DescMessage } from "@bufbuild/protobuf";
import { expect, test } from "vitest";

import { ArgumentError, UnsafeIntegerError } from "../src/index.js";
import { file_runlane_v1_admin_service } from "../src/gen/admin_service_pb.js";
import { EventSchema, file_runlane_v1_event } from "../src/gen/event_pb.js";
import { file_runlane_v1_executor_service } from "../src/gen/executor_service_pb.js";
import { file_runlane_v1_history_service } from "../src/gen/history_service_pb.js";
import { BlockSchema, file_runlane_v1_message, MessageSchema } from "../src/gen/message_pb.js";
import { RunOptionsSchema } from "../src/gen/run_pb.js";
import { file_runlane_v1_session_service } from "../src/gen/session_service_pb.js";
import { fromPlain, toPlain } from "../src/plain.js";
import { seeded } from "./fake.js";

const MESSAGES = [
  file_runlane_v1_admin_service,
  file_runlane_v1_event,
  file_runlane_v1_executor_service,
  file_runlane_v1_history_service,
  file_runlane_v1_message,
  file_runlane_v1_session_service,
].flatMap((file) => file.messages);

type Values = Record<string, unknown>;

function scalar(field: DescField & { scalar?: ScalarType }, random: () => number): unknown {
  const big = Math.floor(random() * 2 ** 31);
  switch (field.scalar) {
    case ScalarType.STRING:
      return ["", "a", "👩‍👩‍👧 1.0", '\n"\\', "e\u0301"][big % 5];
    case ScalarType.BOOL:
      return big % 2 === 0;
    case ScalarType.BYTES:
      return new Uint8Array([0, 255, big % 256]);
    case ScalarType.INT64:
      return [0n, 1n, 9007199254740991n, -9007199254740991n][big % 4];
    default:
      return [0, 1, -1, 2 ** 31 - 1][big % 4];
  }
}

function filled(desc: DescMessage, random: () => number, depth: number): unknown {
  const message = create(desc) as unknown as Values;
  if (desc.typeName === "google.protobuf.Timestamp") {
    message["seconds"] = BigInt(Math.floor(random() * 2e9));
    message["nanos"] = Math.floor(random() * 1000) * 1_000_000;
    return message;
  }
  if (desc.typeName === "google.protobuf.Duration") {
    message["seconds"] = BigInt(Math.floor(random() * 1000));
    message["nanos"] = Math.floor(random() * 1000) * 1_000_000;
    return message;
  }
  const one = (field: DescField, kind: string | undefined): unknown => {
    if (kind === "message" && field.message !== undefined) {
      return filled(field.message, random, depth - 1);
    }
    if (kind === "enum" && field.enum !== undefined) {
      const values = field.enum.values;
      return values[Math.floor(random() * values.length)]?.number;
    }
    return scalar(field as never, random);
  };
  for (const field of desc.fields) {
    if (random() < 0.3 || (field.message !== undefined && depth <= 0)) {
      continue;
    }
    if (field.fieldKind === "list") {
      // No list of the contract holds what is not said.
      const items = [one(field, field.listKind), one(field, field.listKind)];
      message[field.localName] = items.filter((item) => field.listKind !== "enum" || item !== 0);
    } else if (field.fieldKind === "map") {
      message[field.localName] = { "a.b": "", constructor: "1" };
    } else if (field.oneof === undefined) {
      message[field.localName] = one(field, field.fieldKind);
    } else if ((message[field.oneof.localName] as Values)["case"] === undefined) {
      message[field.oneof.localName] = {
        case: field.localName,
        value: one(field, field.fieldKind),
      };
    }
  }
  if (desc.typeName === EventSchema.typeName) {
    const body = desc.fields.find((f) => f.localName === (message["body"] as Values)["case"]);
    message["type"] = body?.number ?? 0;
  }
  return message;
}

test("every message is the same bytes again after it was plain, and JSON takes it", () => {
  const random = seeded(20261130);
  for (const desc of MESSAGES) {
    for (let round = 0; round < 20; round += 1) {
      const message = filled(desc, random, 3) as never;
      const plain = toPlain(desc, message);
      JSON.stringify(plain);
      const again = fromPlain(desc, plain as never);
      expect(Buffer.from(toBinary(desc, again)).toString("hex"), desc.typeName).toBe(
        Buffer.from(toBinary(desc, message)).toString("hex"),
      );
    }
  }
});

test("what is empty is not what is absent", () => {
  expect(toPlain(BlockSchema, fromPlain(BlockSchema, { text: "" })).text).toBe("");
  expect(toPlain(BlockSchema, fromPlain(BlockSchema, {})).text).toBeUndefined();
});

test("an integer that a number cannot hold is refused, by its field", () => {
  const message = create(MessageSchema, { number: 9007199254740993n });
  expect(() => toPlain(MessageSchema, message)).toThrow(UnsafeIntegerError);
  expect(() => toPlain(MessageSchema, message)).toThrow("Message.number: 9007199254740993");
  const options = { limits: { maxTotalTokens: 2 ** 53 } };
  expect(() => fromPlain(RunOptionsSchema, options)).toThrow(
    new ArgumentError("limits.maxTotalTokens", "is no integer within 2^53"),
  );
});

test.each([
  [{ text: "\ud83d" }, "text: holds half of a surrogate pair"],
  [{ texts: "a" }, "texts: there is no such field"],
  [{ text: 1 }, "text: is no string"],
  [{ text: "a", reasoning: {} }, "has both text and reasoning"],
  [{ media: { kind: "picture" } }, 'media.kind: "picture" is none of its words'],
  [{ metadata: { a: 1 } }, "metadata.a: is no string"],
])("what makes no message is refused: %j", (init, problem) => {
  expect(() => fromPlain(BlockSchema, init as never)).toThrow(problem);
});

test("a kind that is newer than this client is unknown", () => {
  const event = create(EventSchema, { sequence: 7n, type: 119 as never, maySkip: true });
  expect(toPlain(EventSchema, event)).toMatchObject({ type: "unknown", sequence: 7 });
  const message = create(MessageSchema, { role: 99 as never });
  expect(toPlain(MessageSchema, message).role).toBe("unknown");
});
