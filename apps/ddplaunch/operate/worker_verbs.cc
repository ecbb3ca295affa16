#include "apps/ddplaunch/operate/worker_verbs.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "launcher/control/control_socket.h"

namespace ddp {
namespace {

using OrderedJson = nlohmann::ordered_json;

/// Time for py-spy and gdb on the nodes.
constexpr std::chrono::seconds kStacksTime{30};
/// The end of an output that was cut (run_tool).
constexpr std::string_view kCutText = "\n(cut here)\n";
/// Bytes of a command. A request has at most 64 KiB, and JSON may escape some of them.
constexpr std::size_t kMostArguments = 32u << 10;
/// The time for the answer to arrive. The job answers earlier than this even if a node does not.
constexpr std::chrono::seconds kSlack{8};

/// Prints the bytes; on a terminal, control characters become `?`.
void print_text(const std::string& text) {
  const std::string shown = ::isatty(STDOUT_FILENO) == 1 ? replace_unsafe(text) : text;
  std::fwrite(shown.data(), 1, shown.size(), stdout);
}

bool is_reply(const OrderedJson& reply) {
  return reply.is_object() && reply.contains("ranks") && reply["ranks"].is_array() &&
         reply.contains("exit_code") && reply["exit_code"].is_number_integer() &&
         reply.contains("troubles") && reply["troubles"].is_array();
}

}  // namespace

Result<int> ask_workers(OperateVerb verb, const OperateOptions& options, const launcher::JobEntry& job) {
  const bool exec = verb == OperateVerb::kExec;
  std::size_t bytes = 0;
  for (const std::string& word : options.command)
    bytes += word.size();
  if (bytes > kMostArguments)
    return Error{ErrorCode::kUsage, "exec: the command has more than " + format_bytes(kMostArguments) +
                                        "; put it into a file that its node can read"};
  const std::chrono::milliseconds timeout = exec ? options.timeout : kStacksTime;
  OrderedJson request{{"timeout_ms", timeout.count()}};
  if (options.rank || exec) request["rank"] = options.rank.value_or(0);
  if (exec) request["argv"] = options.command;
  const auto answer =
      launcher::ask_job(job.socket, "POST", exec ? "/v1/exec" : "/v1/stacks", timeout + kSlack,
                        request.dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
  if (!answer) return within("job " + job.job, answer.error());
  const OrderedJson reply = OrderedJson::parse(*answer, nullptr, false);
  if (!is_reply(reply))
    return Error{ErrorCode::kProtocol, "job " + job.job + ": its ddplaunch gave no answer"};
  if (options.json) {
    print_text(reply.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + '\n');
  } else {
    for (const OrderedJson& rank : reply["ranks"]) {
      if (!exec) std::printf("[%s] ", one_line(rank.value("node", "")).c_str());
      print_text(rank.value("text", ""));
      if (exec && rank.value("text", "").ends_with(kCutText))
        std::fputs("ddplaunch: the output has more than 1 MiB, and the rest was dropped\n", stderr);
    }
  }
  if (std::fflush(stdout) != 0) return system_error(errno, "standard output");
  for (const OrderedJson& trouble : reply["troubles"])
    if (trouble.is_string())
      std::fprintf(stderr, "ddplaunch: %s\n", one_line(trouble.get<std::string>()).c_str());
  if (!reply["troubles"].empty() && (exec || reply["ranks"].empty()))
    return Error{ErrorCode::kRefused, "job " + job.job + " gave no complete answer"};
  const int code = reply["exit_code"].get<int>();
  if (exec && (code == 126 || code == 127) && !reply["ranks"].empty())  // as shells say it
    std::fprintf(stderr, "ddplaunch: exit code %d on %s: %s is %s in the environment of rank %u there\n",
                 code, one_line(reply["ranks"][0].value("node", "")).c_str(),
                 one_line(options.command.front()).c_str(), code == 127 ? "no program" : "not executable",
                 options.rank.value_or(0));
  return code;
}

}  // namespace ddp
