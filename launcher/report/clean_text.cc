#include "launcher/clean_text.h"

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace ddp::launcher {
namespace {

/// Length of the control character at `at`; 0: none begins there.
std::size_t control_at(const std::string& text, std::size_t at) {
  const auto byte = [&](std::size_t i) -> unsigned {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0;
  };
  const unsigned first = byte(0);
  if (first == '\n' || first == '\t') return 0;
  if (first < 0x20 || first == 0x7f) return 1;
  if (first == 0xc2 && byte(1) >= 0x80 && byte(1) < 0xa0) return 2;
  // U+200E, U+200F, U+202A … U+202E, U+2066 … U+2069
  if (first == 0xe2 && byte(1) == 0x80 &&
      (byte(2) == 0x8e || byte(2) == 0x8f || (byte(2) >= 0xaa && byte(2) <= 0xae)))
    return 3;
  if (first == 0xe2 && byte(1) == 0x81 && byte(2) >= 0xa6 && byte(2) <= 0xa9) return 3;
  return 0;
}

/// Walks the fields of a message.
struct Cleaner {
  void operator()(std::string& text) { clean_text(text); }
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
    if constexpr (requires(Cleaner & cleaner) { T::fields(value, cleaner); }) T::fields(value, *this);
  }
};

}  // namespace

void clean_text(std::string& text) {
  std::string clean;
  bool changed = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = control_at(text, at);
    if (length > 0 && !changed) {
      clean = text.substr(0, at);
      changed = true;
    }
    if (changed) clean += length > 0 ? '?' : text[at];
    at += length > 0 ? length : 1;
  }
  if (changed) text = std::move(clean);
}

void clean_texts(rendezvous::Message& message) {
  if (std::holds_alternative<rendezvous::Output>(message)) return;
  if (auto* inspection = std::get_if<rendezvous::Inspection>(&message)) return clean_text(inspection->state);
  if (std::holds_alternative<rendezvous::WorkerCollectives>(message)) return;
  if (auto* evidence = std::get_if<rendezvous::WorkerEvidence>(&message)) {
    clean_text(evidence->oom);
    clean_text(evidence->xid);
    return;
  }
  std::visit([](auto& m) { Cleaner()(m); }, message);
}

}  // namespace ddp::launcher
