#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/flight_recorder/flight_recorder.h"

/// What PyTorch's own worker server tells about a rank (docs/users/hang.md, "PyTorch jobs"). The server
/// belongs to the worker, so each answer may be any bytes.
namespace ddp::rendezvous {

/// The answers of one worker. Empty: there was none.
struct TorchAnswers {
  std::string record;  ///< /handler/fr_trace_json: PyTorch's Flight Recorder, version 2.x
  std::string groups;  ///< /handler/ddplaunch_groups, of our hook: {NAME: {"description": …, "ranks": […]}}
  std::string stacks;  ///< /handler/dump_traceback: all threads as faulthandler prints them
  /// An exception has ended the rank in its last operation, which the record calls retired for that.
  bool gave_up = false;
  /// The stacks did not come in time, though the server answered what needs no GIL afterwards.
  bool lacks_gil = false;
};

/// Returns the body of an HTTP/1.1 answer with status 200 and a Content-Length that is all there; else
/// nothing.
std::optional<std::string_view> http_body(std::string_view answer);

/// Where the main thread is in the user's program, with the library that it has called if that tells why:
/// "at train.py:41 in step", "in its data loader, at train.py:30". Empty: the stacks have no frame.
std::string script_place(std::string_view stacks);

/// Takes the identity and the time from the caller. Fills `groups` and `place` of the dump as
/// read_collectives does: `before` finished operations of each group, and at most `most` from the first
/// unfinished one on. Point-to-point operations are left out. Returns nothing if no answer can be read.
std::optional<FlightRecorderDump> read_torch_answers(const TorchAnswers& answers, FlightRecorderDump identity,
                                                     std::size_t before, std::size_t most);

}  // namespace ddp::rendezvous
