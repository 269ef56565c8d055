#!/usr/bin/env node
// A plugin of protoc: writes the plain form of each message of runlane.v1 as an interface
// (`models.ts`, which src/plain.ts makes and reads at run time), and the table of deadlines and
// retries (`calls.ts`).
import { readFileSync } from "node:fs";

import { ScalarType } from "@bufbuild/protobuf";
import { createEcmaScriptPlugin, runNodeJs } from "@bufbuild/protoplugin";

const PACKAGE = "runlane.v1";
const CALLS = "proto/calls.json";
const NUMBERS = new Set([ScalarType.INT32, ScalarType.INT64, ScalarType.DOUBLE, ScalarType.FLOAT]);
const NOUN =
  /^(session|submission|run|activation|message|model_step|tool_call|interaction|child_run)_/;

runNodeJs(
  createEcmaScriptPlugin({
    name: "protoc-gen-runlane",
    version: "v1",
    generateTs(schema) {
      const files = schema.files.filter((file) => file.proto.package === PACKAGE);
      writeModels(schema.generateFile("runlane/v1/models.ts"), files);
      const calls = schema.generateFile("runlane/v1/calls.ts");
      calls.print("// Generated code. `make gen` makes it anew from ", CALLS, ".");
      calls.print("/** Deadlines and retries, the same for all clients. */");
      calls.print("export const CALLS = ", readFileSync(CALLS, "utf8").trim(), ";");
    },
  }),
);

function writeModels(out, files) {
  out.print("// Generated code. `make gen` makes it anew from proto/.");
  out.print();
  const messages = files.flatMap((file) => file.messages.flatMap(withNested));
  for (const found of [
    ...files.flatMap((file) => file.enums),
    ...messages.flatMap((m) => m.nestedEnums),
  ]) {
    writeEnum(out, found);
  }
  for (const message of messages) {
    writeMessage(out, message);
  }
  out.print("/** The plain form of each message, by its name. */");
  out.print("export interface Models {");
  for (const message of messages) {
    out.print("  ", JSON.stringify(message.typeName), ": ", nameOf(message), ";");
  }
  out.print("}");
}

function withNested(message) {
  return [message, ...message.nestedMessages.flatMap(withNested)];
}

function nameOf(desc) {
  return desc.typeName.slice(PACKAGE.length + 1).replaceAll(".", "");
}

function words(found) {
  const dotted = found.typeName === `${PACKAGE}.Event.Type`;
  return found.values
    .filter((value) => value.number !== 0)
    .map((value) => value.localName.toLowerCase())
    .map((word) => JSON.stringify(dotted ? word.replace(NOUN, "$1.") : word));
}

function writeEnum(out, found) {
  out.print(doc(found, ""));
  out.print("export type ", nameOf(found), " =");
  for (const word of words(found)) {
    out.print("  | ", word);
  }
  out.print('  | "unknown";');
  out.print();
}

function writeMessage(out, message) {
  const event = message.typeName === `${PACKAGE}.Event`;
  out.print(doc(message, ""));
  out.print("export interface ", nameOf(message), event ? "Envelope" : "", " {");
  for (const field of message.fields) {
    if (!event || (field.name !== "type" && field.oneof === undefined)) {
      out.print(doc(field, "  "));
      out.print(
        "  readonly ",
        nameOfField(field),
        required(field) ? "" : "?",
        ": ",
        typeOf(field),
        ";",
      );
    }
  }
  out.print("}");
  out.print();
  if (event) {
    writeEvent(out, message);
  }
}

function writeEvent(out, message) {
  out.print("/** The bodies of events, by their type. */");
  out.print("export interface EventBodies {");
  for (const field of message.fields.filter((one) => one.oneof !== undefined)) {
    out.print(
      "  ",
      JSON.stringify(field.name.replace(NOUN, "$1.")),
      ": ",
      nameOf(field.message),
      ";",
    );
  }
  out.print("}");
  out.print();
  out.print(doc(message, ""));
  out.print("export type Event =");
  out.print(
    "  | { [T in keyof EventBodies]: EventEnvelope & { readonly type: T; readonly body: EventBodies[T] } }[keyof EventBodies]",
  );
  out.print('  | (EventEnvelope & { readonly type: "unknown"; readonly body?: undefined });');
  out.print();
}

function nameOfField(field) {
  return field.message?.typeName === "google.protobuf.Duration"
    ? `${field.localName}Seconds`
    : field.localName;
}

function required(field) {
  const scalar =
    field.fieldKind === "scalar" && field.oneof === undefined && !field.proto.proto3Optional;
  return scalar || field.fieldKind === "list" || field.fieldKind === "map";
}

function typeOf(field) {
  switch (field.fieldKind) {
    case "scalar":
      return scalarType(field.scalar);
    case "enum":
      return nameOf(field.enum);
    case "message":
      return messageType(field.message);
    case "list":
      return `readonly ${itemType(field, field.listKind)}[]`;
    case "map":
      return `Readonly<Record<string, ${itemType(field, field.mapKind)}>>`;
    default:
      throw new Error(`${field}: of no known kind`);
  }
}

function itemType(field, kind) {
  switch (kind) {
    case "scalar":
      return scalarType(field.scalar);
    case "enum":
      return nameOf(field.enum);
    default:
      return messageType(field.message);
  }
}

function messageType(message) {
  switch (message.typeName) {
    case "google.protobuf.Timestamp":
      return "Date";
    case "google.protobuf.Duration":
      return "number";
    default:
      return nameOf(message);
  }
}

function scalarType(scalar) {
  if (NUMBERS.has(scalar)) {
    return "number";
  }
  const found = {
    [ScalarType.STRING]: "string",
    [ScalarType.BOOL]: "boolean",
    [ScalarType.BYTES]: "Uint8Array",
  }[scalar];
  if (found === undefined) {
    throw new Error(`a scalar of kind ${scalar} has no plain form`);
  }
  return found;
}

function doc(desc, indent) {
  const path = sourcePath(desc);
  const location = (desc.file ?? desc.parent.file).proto.sourceCodeInfo?.location.find(
    (found) =>
      found.path.length === path.length && found.path.every((part, index) => part === path[index]),
  );
  const text = (location?.leadingComments ?? "").trim().replaceAll("*/", "* /");
  const lines = text.split("\n").map((line) => line.trim());
  return lines.length === 1
    ? `${indent}/** ${lines[0]} */`
    : [
        `${indent}/**`,
        ...lines.map((line) => `${indent} * ${line}`.trimEnd()),
        `${indent} */`,
      ].join("\n");
}

function sourcePath(desc) {
  if (desc.kind === "field") {
    return [...sourcePath(desc.parent), 2, desc.parent.proto.field.indexOf(desc.proto)];
  }
  const list = desc.kind === "enum" ? "enumType" : "messageType";
  if (desc.parent === undefined) {
    return [desc.kind === "enum" ? 5 : 4, desc.file.proto[list].indexOf(desc.proto)];
  }
  const nested = desc.kind === "enum" ? desc.parent.proto.enumType : desc.parent.proto.nestedType;
  return [...sourcePath(desc.parent), desc.kind === "enum" ? 4 : 3, nested.indexOf(desc.proto)];
}
