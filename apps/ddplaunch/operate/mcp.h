#pragma once

#include <string_view>

namespace ddp {

/// `ddplaunch mcp`: serves the Model Context Protocol over stdin and stdout until stdin ends
/// (docs/users/tools.md), and returns the exit code. Each call of a tool runs a verb of this program in a
/// child, so a call can be cancelled, and what a verb prints is all that a tool says.
int serve_mcp();

/// Returns the JSON Schema of what `ddplaunch VERB --json` prints: configs/schema/VERB.schema.json. Only of
/// the verbs that tools run.
std::string_view output_schema(std::string_view verb);

}  // namespace ddp
