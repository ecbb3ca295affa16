#pragma once

#include <string>

#include "rendezvous/message.h"

namespace ddp::launcher {

/// Makes text of another machine safe for a terminal: control characters become '?', newlines and tabs stay.
/// Also those of UTF-8's second block (U+0080 … U+009F) and the marks that turn the direction of writing;
/// bytes that are no UTF-8 stay, for a terminal shows them as such.
void clean_text(std::string& text);

/// All texts of a message from a node, but the output of its workers, which is theirs, and what goes to files
/// only or is read by a program (Inspection::text, WorkerEvidence::error_json, WorkerCollectives::log).
void clean_texts(rendezvous::Message& message);

}  // namespace ddp::launcher
