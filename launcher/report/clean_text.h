#pragma once

#include <string>

#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// Makes text of another machine safe for a terminal, as replace_unsafe does.
void clean_text(std::string& text);

/// The same as one line: a text of another machine must not begin a line that passes for one of ddplaunch.
void clean_line(std::string& text);

/// All texts of a message from a node, but the output of its workers, which is theirs, and what goes to files
/// only or is read by a program (Inspection::text, WorkerEvidence::error_json, WorkerCollectives::log). Each
/// becomes one line, but WorkerEvidence::xid, and Refused::text and NodeChecked::environment_trouble, whose
/// lines after the first are indented.
void clean_texts(rendezvous::Message& message);

}  // namespace ddp::launcher
