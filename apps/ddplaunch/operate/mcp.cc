#include "apps/ddplaunch/operate/operate_options.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/ddplaunch/operate/job_files.h"
#include "base/asio.h"
#include "base/blocking_calls.h"
#include "base/child_process.h"
#include "base/files.h"
#include "base/program.h"
#include "launcher/report/report_json.h"

namespace ddp {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::seconds;

/// Revisions of the protocol. In the newer one each request names its revision, and there is no handshake.
constexpr const char* kStateless = "2026-07-28";
constexpr const char* kWithHandshake = "2025-11-25";
constexpr const char* kRevisionKey = "io.modelcontextprotocol/protocolVersion";

/// Error codes of JSON-RPC, and one of the protocol.
constexpr int kParseError = -32700;
constexpr int kInvalidRequest = -32600;
constexpr int kNoMethod = -32601;
constexpr int kInvalidParams = -32602;
constexpr int kUnsupportedRevision = -32022;

constexpr std::size_t kMostLine = 64u << 10;
constexpr int kMostDepth = 32;
constexpr std::size_t kMostCalls = 8;
constexpr std::size_t kMostJson = 16u << 20;  ///< bytes of a document; a job of 10,000 ranks has less
constexpr std::size_t kMostText = 256u << 10;
constexpr std::size_t kMostErrors = 8u << 10;
/// The tools are those of this program, which does not change while it runs.
constexpr int kToolsLast = 3'600'000;  ///< milliseconds

/// An argument of a tool. The verb checks its value.
struct Parameter {
  const char* name;
  const char* option;  ///< of the verb; empty: JOB
  const char* type;    ///< of JSON
  const char* description;
};

struct Tool {
  const char* name;
  const char* verb;
  const char* description;
  std::vector<Parameter> parameters;
  seconds time;
  bool json = true;  ///< the verb prints a document; else text
  /// Only these keys of the document; empty: all.
  std::vector<std::string> keys = {};
};

const std::vector<Tool>& tools() {
  static const Parameter kJob{"job", "", "string",
                              "id of the job, or its beginning; without it the running job, or the newest"};
  static const Parameter kRank{"rank", "--rank", "integer", "only this rank"};
  static const std::vector<Tool> kTools{
      {"jobs",
       "ps",
       "Lists the user's jobs on this machine, the newest first, with state, progress and failure.",
       {{"all", "--all", "boolean", "also jobs that have ended"}},
       seconds(60)},
      {"status",
       "status",
       "Shows a job: state, step, loss, goodput, usage, nodes with their ranks, and the root cause of a "
       "failure.",
       {kJob},
       seconds(30)},
      {"failures",
       "status",
       "Says why a job failed: host, rank, exception, last lines on stderr, OOM killer, Xid, and a hint. "
       "report has earlier attempts, logs with failed=true all output of the rank.",
       {kJob},
       seconds(30),
       true,
       {"format", "job", "state", "exit_code", "why", "failure", "warnings"}},
      {"logs",
       "logs",
       "Prints what the workers wrote, each line with its rank.",
       {kJob,
        kRank,
        {"stream", "--stream", "string", "stdout or stderr; without it both"},
        {"attempt", "--attempt", "integer", "only this attempt; the first is 0"},
        {"tail", "--tail", "integer", "the last lines of each rank and stream; without it 50"},
        {"since", "--since", "string", "only lines since then: 10m, or 2026-11-21T03:14:39Z"},
        {"failed", "--failed", "boolean", "only the rank of each attempt that is the root cause"},
        {"timestamps", "--timestamps", "boolean", "a time before each line"},
        {"grep", "--grep", "string", "only lines that match this extended regular expression"}},
       seconds(60),
       false},
      {"stacks",
       "stacks",
       "Shows what each worker of a running job does now: its state and the stacks of its threads. Stops a "
       "worker for a moment where py-spy or gdb reads its stacks.",
       {kJob, kRank},
       seconds(60)},
      {"hang",
       "hang",
       "Asks the ranks of a running job which of them the others wait for, in which collective and at which "
       "line.",
       {kJob},
       seconds(30)},
      {"report",
       "report",
       "Returns the report of a job that has ended: root cause, other failures, earlier attempts, usage.",
       {kJob},
       seconds(30)},
      {"check",
       "check",
       "Tests hosts for what would break a job. Starts no worker. Connects to the hosts as a job would.",
       {{"host", "--host", "string",
         "hosts like gpu[01-16]:8, comma-separated, without keys; without hosts this machine"},
        {"nproc_per_node", "--nproc-per-node", "string", "workers on each node: a number, auto, gpu or cpu"}},
       seconds(600)},
  };
  return kTools;
}

Json input_schema(const Tool& tool) {
  Json properties = Json::object();
  for (const Parameter& each : tool.parameters)
    properties[each.name] = {{"type", each.type}, {"description", each.description}};
  return {{"type", "object"}, {"properties", std::move(properties)}, {"additionalProperties", false}};
}

/// Returns the schema of a tool's document, complete in itself: a client does not read other files.
Json schema_of(const Tool& tool) {
  const auto read = [](const char* verb) {
    Json schema = Json::parse(output_schema(verb));
    const auto verdict = schema["properties"].find("hang");
    if (verdict != schema["properties"].end()) {  // the only definition of another file
      (*verdict)["$ref"] = "#/$defs/verdict";
      schema["$defs"]["verdict"] = Json::parse(output_schema("hang"))["$defs"]["verdict"];
    }
    schema.erase("$schema");  // 2020-12 is the protocol's own
    schema.erase("$id");      // clients keep the schemas of all tools in one place
    return schema;
  };
  Json schema = read(tool.verb);
  if (std::string_view(tool.verb) == "ps") {
    Json job = read("status");
    schema["$defs"] = std::move(job["$defs"]);
    job.erase("$defs");
    schema["$defs"]["job"] = std::move(job);
    schema["properties"]["jobs"]["items"] = {{"$ref", "#/$defs/job"}};
  }
  if (!tool.keys.empty()) {
    Json properties = Json::object();
    for (const std::string& key : tool.keys)
      properties[key] = schema["properties"][key];
    schema["properties"] = std::move(properties);
    schema["required"] = tool.keys;
  }
  return schema;
}

Json tool_list() {
  Json list = Json::array();
  for (const Tool& tool : tools()) {
    list.push_back({{"name", tool.name},
                    {"description", tool.description},
                    {"inputSchema", input_schema(tool)},
                    {"annotations",
                     {{"readOnlyHint", true}, {"openWorldHint", tool.name == std::string_view("check")}}}});
    if (tool.json) list.back()["outputSchema"] = schema_of(tool);
  }
  return list;
}

/// True for hosts with keys, such as wrapper and setup: these are commands that a check runs. For the same
/// reason no tool reads a hostfile, which may be any file, such as the output of a worker.
bool has_keys(const std::string& hosts) {
  bool behind_comma = false;  // where blanks separate hosts, and no keys
  for (const unsigned char c : hosts) {
    if (c < ' ' || c == '=' || (c == ' ' && !behind_comma)) return true;
    behind_comma = c == ',' || c == ' ';
  }
  return false;
}

/// Returns the arguments of the verb, without the program. Error: what is wrong with the tool's arguments.
Result<std::vector<std::string>> verb_arguments(const Tool& tool, const Json& arguments) {
  const auto wrong = [](const std::string& what) { return Error{ErrorCode::kUsage, what}; };
  if (!arguments.is_object()) return wrong("arguments are no object");
  std::vector<std::string> words{tool.verb};
  if (tool.json) words.emplace_back("--json");
  if (!tool.json && !arguments.contains("tail")) words.emplace_back("--tail=50");
  for (const auto& [name, value] : arguments.items()) {
    const auto parameter = std::ranges::find(tool.parameters, name, &Parameter::name);
    if (parameter == tool.parameters.end()) return wrong("no such argument: " + name);
    const std::string_view type = parameter->type;
    const std::string option = parameter->option;
    if (type == "boolean"   ? !value.is_boolean()
        : type == "integer" ? !value.is_number_integer()
                            : !value.is_string())
      return wrong(name + " is no " + parameter->type);
    if (type == "boolean") {
      if (value.get<bool>()) words.push_back(option);
    } else if (type == "integer") {
      words.push_back(option + '=' + value.dump());
    } else if (const auto text = value.get<std::string>(); option == "--host" && has_keys(text)) {
      return wrong("host has keys; a tool that only reads takes names and slots");
    } else if (!option.empty()) {
      words.push_back(option + '=' + text);
    } else if (text.starts_with('-') || text.find('\0') != std::string::npos) {
      return wrong(name + " is no id");
    } else {
      words.push_back(text);
    }
  }
  return words;
}

class McpServer {
 public:
  explicit McpServer(asio::io_context& loop) : loop_(loop), stdin_(loop, ::dup(STDIN_FILENO)) {}

  /// Returns when stdin has ended, or stdout takes nothing more.
  Awaitable<> serve() {
    std::string chunk(kMostLine, '\0');
    while (!closed_) {
      (void)co_await until_readable(stdin_);  // fails for a file, which is always readable
      const ssize_t count = ::read(stdin_.native_handle(), chunk.data(), chunk.size());
      if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (count <= 0) break;
      take_bytes(std::string_view(chunk).substr(0, static_cast<std::size_t>(count)));
    }
    loop_.stop();
  }

 private:
  void take_bytes(std::string_view bytes) {
    for (std::size_t end = 0; (end = bytes.find('\n')) != std::string_view::npos;
         bytes.remove_prefix(end + 1)) {
      line_ += bytes.substr(0, std::min(end, kMostLine + 1));
      if (line_.size() > kMostLine)
        refuse(Json(), kParseError, "a message has more than 64 KiB");
      else if (line_.find_first_not_of(" \t\r") != std::string::npos)
        take_line(line_);
      line_.clear();
    }
    if (line_.size() <= kMostLine) line_ += bytes;
  }

  void take_line(const std::string& line) {
    bool deep = false;  // copies of a deep value could exhaust the stack
    const auto bounded = [&deep](int depth, Json::parse_event_t, const Json&) {
      deep = deep || depth > kMostDepth;
      return depth <= kMostDepth;
    };
    const Json message = Json::parse(line, bounded, false);
    if (deep) return refuse(Json(), kInvalidRequest, "a message is nested too deeply");
    if (message.is_discarded()) return refuse(Json(), kParseError, "a line is no JSON");
    if (launcher::text_of(message, "jsonrpc") != "2.0")
      return refuse(Json(), kInvalidRequest, "a message is no request of JSON-RPC 2.0; there are no batches");
    const std::string method = launcher::text_of(message, "method");
    const Json params = message.value("params", Json::object());
    if (!message.contains("id")) return take_notification(method, params);
    const Json& id = message["id"];
    if (method.empty() && (message.contains("result") || message.contains("error")))
      return;  // nothing was asked
    if ((!id.is_string() && !id.is_number_integer()) || method.empty() || !params.is_object())
      return refuse(Json(), kInvalidRequest, "a request has an id, a method, and params that are an object");
    take_request(id, method, params);
  }

  void take_notification(const std::string& method, const Json& params) {
    if (method != "notifications/cancelled" || !params.is_object() || !params.contains("requestId")) return;
    const auto call = calls_.find(params["requestId"].dump());
    if (call != calls_.end()) call->second.stop();
  }

  void take_request(const Json& id, const std::string& method, const Json& params) {
    const Json meta = params.value("_meta", Json::object());
    const Json revision = meta.is_object() ? meta.value(kRevisionKey, Json()) : Json();
    const bool stateless = !revision.is_null();
    if (stateless && revision != kStateless)
      return refuse(id, kUnsupportedRevision, "Unsupported protocol version",
                    {{"supported", {kStateless, kWithHandshake}}, {"requested", revision}});
    if (method == "initialize") {
      handshake_ = true;
      return answer(id, false,
                    {{"protocolVersion", kWithHandshake},
                     {"capabilities", {{"tools", Json::object()}}},
                     {"serverInfo", server_info()},
                     {"instructions", kInstructions}});
    }
    if (method == "ping") return answer(id, stateless, Json::object());
    if (!stateless && !handshake_)
      return refuse(id, kInvalidParams,
                    std::string("params._meta lacks ") + kRevisionKey + ", and there was no initialize");
    if (method == "server/discover")
      return answer(id, stateless,
                    {{"supportedVersions", {kStateless, kWithHandshake}},
                     {"capabilities", {{"tools", Json::object()}}},
                     {"instructions", kInstructions},
                     {"ttlMs", kToolsLast},
                     {"cacheScope", "private"}});
    if (method == "tools/list") {
      Json list{{"tools", tool_list()}};
      if (stateless) list.update({{"ttlMs", kToolsLast}, {"cacheScope", "private"}});
      return answer(id, stateless, std::move(list));
    }
    if (method != "tools/call") return refuse(id, kNoMethod, "no such method: " + method);
    take_call(id, stateless, params);
  }

  void take_call(const Json& id, bool stateless, const Json& params) {
    const Json name = params.value("name", Json());
    const auto tool = std::ranges::find_if(tools(), [&name](const Tool& each) { return name == each.name; });
    if (tool == tools().end()) return refuse(id, kInvalidParams, "no such tool: " + name.dump());
    if (calls_.contains(id.dump())) return refuse(id, kInvalidRequest, "a request with this id runs");
    auto words = verb_arguments(*tool, params.value("arguments", Json::object()));
    if (!words) return answer(id, stateless, error_text(words.error().text));
    if (calls_.size() >= kMostCalls)
      return answer(id, stateless,
                    error_text(std::to_string(kMostCalls) + " calls run; try again when one has ended"));
    spawn(loop_.get_executor(), call(id, stateless, &*tool, std::move(*words)));
  }

  /// Runs the verb, and answers unless the call is cancelled.
  Awaitable<> call(Json id, bool stateless, const Tool* tool, std::vector<std::string> words) {
    const std::string key = id.dump();
    ToolStop& stop = calls_[key];
    ChildSpec child;
    child.path = "/proc/self/exe";
    child.argv = {"ddplaunch"};
    child.argv.insert(child.argv.end(), words.begin(), words.end());
    child.env = own_environment();
    auto errors = memory_file("ddplaunch-mcp");
    if (errors) child.err = errors->get();
    const auto deadline = std::chrono::steady_clock::now() + tool->time;
    const ToolOutput output =
        co_await run_tool(std::move(child), deadline, tool->json ? kMostJson : kMostText, nullptr, &stop);
    const bool cancelled = stop.stopped;
    calls_.erase(key);
    if (cancelled) co_return;
    std::string said;
    if (errors && ::lseek(errors->get(), 0, SEEK_SET) == 0) said = read_whole(errors->get(), kMostErrors);
    answer(id, stateless, result_of(*tool, output, said));
  }

  /// `said`: what the verb wrote to stderr.
  static Json result_of(const Tool& tool, const ToolOutput& output, const std::string& said) {
    const std::string why = said.empty() ? output.trouble() : said;
    if (!tool.json) {
      if (!output.success()) return error_text(why);
      const bool nothing = output.text.empty();  // stderr says why
      return {{"content", {{{"type", "text"}, {"text", nothing ? said : output.text}}}}, {"isError", false}};
    }
    // A check that finds errors has a document, too.
    Json document = Json::parse(output.text, nullptr, false);
    if (!document.is_object()) return error_text(output.cut ? "the answer has more than 16 MiB" : why);
    if (!tool.keys.empty()) {
      Json some = Json::object();
      for (const std::string& key : tool.keys)
        some[key] = document[key];
      document = std::move(some);
    }
    return {{"content", {{{"type", "text"}, {"text", document.dump()}}}},
            {"structuredContent", std::move(document)},
            {"isError", false}};
  }

  static Json error_text(const std::string& text) {
    return {{"content", {{{"type", "text"}, {"text", text}}}}, {"isError", true}};
  }

  static Json server_info() { return {{"name", "ddplaunch"}, {"version", version()}}; }

  void answer(const Json& id, bool stateless, Json result) {
    if (stateless) {
      result["resultType"] = "complete";
      result["_meta"] = {{"io.modelcontextprotocol/serverInfo", server_info()}};
    }
    send({{"jsonrpc", "2.0"}, {"id", id}, {"result", std::move(result)}});
  }

  /// `id`: null where it could not be read.
  void refuse(const Json& id, int code, const std::string& text, const Json& data = {}) {
    Json error{{"code", code}, {"message", text}};
    if (!data.is_null()) error["data"] = data;
    send({{"jsonrpc", "2.0"}, {"id", id}, {"error", std::move(error)}});
  }

  void send(const Json& message) {
    closed_ = closed_ || !print(launcher::json_line(message));
    if (closed_) loop_.stop();
  }

  static constexpr const char* kInstructions =
      "ddplaunch runs distributed training jobs. Begin with jobs or status; failures says why a job failed, "
      "hang and stacks where a job that makes no progress waits. All tools only read.";

  asio::io_context& loop_;
  asio::posix::stream_descriptor stdin_;
  std::string line_;        ///< the beginning of a message; longer than kMostLine: it is skipped
  bool handshake_ = false;  ///< the client has sent `initialize`
  bool closed_ = false;     ///< stdout takes nothing more
  std::map<std::string, ToolStop> calls_;  ///< that run, by the id of their request
};

}  // namespace

int serve_mcp() {
  asio::io_context loop(1);
  McpServer server(loop);
  spawn(loop.get_executor(), server.serve());
  loop.run();
  return 0;
}

}  // namespace ddp
