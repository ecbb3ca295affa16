#pragma once

#include <string>

#include "rendezvous/protocol/message.h"

namespace ddp::rendezvous {

/// Makes text of another machine safe for a terminal, like replace_unsafe.
void clean_text(std::string& text);

/// Does the same and makes one line, so that such text cannot imitate a line of ddplaunch.
void clean_line(std::string& text);

/// Cleans all texts of a message from a node. The output of workers is left alone, and so are texts that go
/// only to files or to a parser (Inspection::text, WorkerEvidence::error_json, WorkerCollectives::log). So is
/// QueryAnswer::text, which its reader makes safe. Each text becomes one line, except WorkerEvidence::xid,
/// Refused::text and NodeChecked::environment_trouble. The last two have their lines after the first
/// indented.
void clean_texts(Message& message);

}  // namespace ddp::rendezvous
