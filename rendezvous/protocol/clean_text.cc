#include "rendezvous/protocol/clean_text.h"

#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <boost/pfr/core.hpp>

#include "base/text.h"

namespace ddp::rendezvous {
namespace {

/// Applies clean_line to all text fields of a message.
struct Cleaner {
  void operator()(std::string& text) { clean_line(text); }
  template <class A, class B>
  void operator()(std::pair<A, B>& pair) {
    (*this)(pair.first), (*this)(pair.second);
  }
  template <class T>
  void operator()(std::vector<T>& list) {
    for (T& element : list)
      (*this)(element);
  }
  template <class T>
  void operator()(T& value) {
    if constexpr (std::is_aggregate_v<T>)
      boost::pfr::for_each_field(value, [this](auto& field) { (*this)(field); });
  }
};

/// Cleans a text of several lines, such as the last lines of a setup script. Lines are indented, so that none
/// looks like a line of ddplaunch.
void clean_lines(std::string& text) {
  const std::string safe = replace_unsafe(text);
  text.clear();
  for (std::size_t at = 0; at < safe.size(); ++at) {
    text += safe[at];
    if (safe[at] == '\n' && safe.compare(at + 1, 2, "  ") != 0) text += "  ";
  }
}

}  // namespace

void clean_text(std::string& text) {
  text = replace_unsafe(text);
}

void clean_line(std::string& text) {
  text = one_line(replace_unsafe(text));
}

void clean_texts(Message& message) {
  // Bytes of workers are data and stay as they are. A dump of collectives is cleaned where its names are
  // shown (FailureLog).
  if (std::holds_alternative<Output>(message)) return;
  if (auto* inspection = std::get_if<Inspection>(&message)) return clean_line(inspection->state);
  if (auto* refused = std::get_if<Refused>(&message)) return clean_lines(refused->text);
  if (std::holds_alternative<WorkerCollectives>(message)) return;
  if (auto* answer = std::get_if<QueryAnswer>(&message)) return clean_line(answer->trouble);
  if (auto* evidence = std::get_if<WorkerEvidence>(&message)) {
    clean_line(evidence->oom);
    clean_text(evidence->xid);  // separate lines; the report labels each
    return;
  }
  if (auto* checked = std::get_if<NodeChecked>(&message)) {
    std::string environment = std::move(checked->environment_trouble);
    clean_lines(environment);
    Cleaner()(*checked);
    checked->environment_trouble = std::move(environment);
    return;
  }
  std::visit([](auto& m) { Cleaner()(m); }, message);
}

}  // namespace ddp::rendezvous
