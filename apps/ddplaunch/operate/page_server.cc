#include "apps/ddplaunch/operate/page_server.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <nlohmann/json.hpp>

#include "apps/ddplaunch/operate/job_files.h"
#include "base/crypto.h"
#include "base/files.h"
#include "base/program.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "launcher/control/control_socket.h"
#include "launcher/lines/live_board.h"
#include "launcher/lines/output_lines.h"

namespace ddp {
namespace {

using OrderedJson = nlohmann::ordered_json;
using launcher::RunState;

constexpr std::chrono::seconds kStatusTime{1};
constexpr std::size_t kReportJournalBytes = 32u << 20;
constexpr std::size_t kReportRanks = 32;  // in a report
constexpr std::size_t kReportEvents = 20'000;

std::string compact(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

OrderedJson events_of(const launcher::JobEntry& job) {
  OrderedJson events = OrderedJson::array();
  for (const char* name : {"/events.jsonl.1", "/events.jsonl"}) {
    std::istringstream lines(read_start(job.directory + name, kReportJournalBytes, O_NOFOLLOW | O_NONBLOCK));
    for (std::string line; std::getline(lines, line) && events.size() < kReportEvents;) {
      OrderedJson event = OrderedJson::parse(line, nullptr, false);
      if (event.is_object() && event.contains("event")) events.push_back(std::move(event));
    }
  }
  return events;
}

/// Returns output as a terminal would show it, without colors: of a bar its last state.
std::string shown_text(std::string_view output) {
  launcher::LineAssembler assembler{std::string()};
  std::string lines;
  assembler.add(output, lines);
  assembler.finish(lines);
  return launcher::without_colours(lines);
}

std::optional<std::uint32_t> number_in(const OrderedJson& event, const char* key) {
  const auto found = event.find(key);
  if (found == event.end() || !found->is_number_unsigned()) return {};
  return found->get<std::uint32_t>();
}

/// Returns attempt and rank of those whose output explains the end of the job: ranks that failed before their
/// attempt was stopped, and rank 0 of the last attempt.
std::set<std::pair<std::uint32_t, std::uint32_t>> shown_ranks(const OrderedJson& events) {
  std::set<std::pair<std::uint32_t, std::uint32_t>> ranks;
  std::set<std::uint32_t> stopped;
  std::uint32_t last = 0;
  for (const OrderedJson& event : events) {
    const auto attempt = number_in(event, "attempt");
    const auto rank = number_in(event, "rank");
    if (!attempt) continue;
    last = std::max(last, *attempt);
    if (event["event"] == "attempt_stopping") stopped.insert(*attempt);
    const bool failed = event["event"] == "rank_exited" && number_in(event, "exit_code") != 0u;
    if (failed && rank && !stopped.contains(*attempt) && ranks.size() + 1 < kReportRanks)
      ranks.emplace(*attempt, *rank);
  }
  ranks.emplace(last, 0u);
  return ranks;
}

}  // namespace

std::string page_state(const launcher::JobEntry& job) {
  const RunState state = launcher::state_of(job);
  OrderedJson json{{"job", job.job},
                   {"state", launcher::state_name(state.kind)},
                   {"exit_code", state.exit_code ? OrderedJson(*state.exit_code) : OrderedJson()},
                   {"why", state.why},
                   {"started", job.started},
                   {"directory", job.directory},
                   {"command", job.command},
                   {"goodput", OrderedJson()},
                   {"warnings", OrderedJson::array()},
                   {"status", OrderedJson()}};
  if (state.kind == RunState::Kind::kRunning) {
    const auto answer = ask_running_job(job, "GET", "/v1/status", kStatusTime);
    OrderedJson status = OrderedJson::parse(answer ? *answer : "", nullptr, false);
    if (status.is_object() && status.contains("nodes")) {
      json["warnings"] = status.value("warnings", OrderedJson::array());
      json["status"] = std::move(status);
    }
  }
  if (state.kind == RunState::Kind::kEnded) {
    const OrderedJson report = launcher::read_report(job.directory);
    if (report.is_object()) {
      json["goodput"] = report.value("goodput", OrderedJson());
      json["warnings"] = report.value("warnings", OrderedJson::array());
    }
  }
  return compact(json);
}

Result<std::string> page_output(const launcher::JobEntry& job, const OutputStream& place) {
  const std::string first = job.directory + "/attempt_" + std::to_string(place.attempt) +
                            format_text("/rank_%05u.", place.rank) + (place.is_stderr ? "stderr" : "stdout");
  // With --log-max-size the part with the highest number is the newest.
  UniqueFd fd;
  std::string path = first;
  for (int part = 1;; ++part) {
    UniqueFd next(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    if (!next) break;
    fd = std::move(next);
    path = first + '.' + std::to_string(part);
  }
  if (!fd) {
    std::uint64_t read = 0;
    const LogKey key{place.attempt, place.rank, place.is_stderr ? "stderr" : "stdout", 0};
    for (ShortLog& log : read_short_attempts(job.directory, read))
      if (log.key == key) return shown_text(log.text);
    return Error{ErrorCode::kSystem, first + ": No such file or directory", ENOENT};
  }
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return system_error(errno, first);
  const auto size = static_cast<std::size_t>(std::max<off_t>(status.st_size, 0));
  std::string text(std::min(size, kPageOutputBytes), '\0');
  const ssize_t count = ::pread(fd.get(), text.data(), text.size(), static_cast<off_t>(size - text.size()));
  if (count < 0) return system_error(errno, first);
  text.resize(static_cast<std::size_t>(count));
  if (size > kPageOutputBytes) text.erase(0, text.find('\n') + 1);
  return shown_text(text);
}

std::string report_data(const launcher::JobEntry& job) {
  const OrderedJson events = events_of(job);
  OrderedJson output = OrderedJson::object();
  for (const auto& [attempt, rank] : shown_ranks(events)) {
    for (const bool is_stderr : {false, true}) {
      if (auto text = page_output(job, {attempt, rank, is_stderr}))
        output[format_text("%u %u %s", attempt, rank, is_stderr ? "stderr" : "stdout")] = std::move(*text);
    }
  }
  return compact({{"state", OrderedJson::parse(page_state(job))}, {"events", events}, {"output", output}});
}

namespace {

namespace http = boost::beast::http;
using Tcp = asio::ip::tcp;
using Stream = boost::beast::tcp_stream;
using PageRequest = http::request<http::empty_body>;
using PageReply = http::response<http::string_body>;

constexpr std::chrono::seconds kRequestTime{10};
/// A page that takes no data for this time is closed.
constexpr std::chrono::seconds kStalledTime{30};
constexpr std::chrono::seconds kRefreshEvery{1};
constexpr std::chrono::seconds kMetricsTime{1};
constexpr std::uint32_t kHeaderBytes = 8u << 10;
constexpr std::size_t kEventsKept = 20'000;

std::string_view target_of(const PageRequest& request) {
  return {request.target().data(), request.target().size()};
}

std::string_view path_of(const PageRequest& request) {
  const std::string_view target = target_of(request);
  return target.substr(0, target.find('?'));
}

/// Returns the value of a key of the query, as it is written; empty: it is missing.
std::string_view query_value(const PageRequest& request, std::string_view key) {
  std::string_view rest = target_of(request);
  rest.remove_prefix(std::min(rest.find('?'), rest.size()));
  while (!rest.empty()) {
    rest.remove_prefix(1);
    const std::string_view part = rest.substr(0, rest.find('&'));
    if (part.starts_with(key) && part.substr(key.size()).starts_with('=')) return part.substr(key.size() + 1);
    rest.remove_prefix(part.size());
  }
  return {};
}

std::optional<OutputStream> place_of(const PageRequest& request) {
  const auto attempt = parse_number<std::uint32_t>(query_value(request, "attempt"));
  const auto rank = parse_number<std::uint32_t>(query_value(request, "rank"));
  const std::string_view stream = query_value(request, "stream");
  if (!attempt || !rank || (stream != "stdout" && stream != "stderr")) return {};
  return OutputStream{*attempt, *rank, stream == "stderr"};
}

template <class Message>
void set_common(Message& made, const char* type) {
  made.set(http::field::content_type, type);
  made.set(http::field::cache_control, "no-store");
  made.set("X-Content-Type-Options", "nosniff");
  made.set("Referrer-Policy", "no-referrer");  // the address has the token
  made.keep_alive(false);
}

PageReply make_reply(const PageRequest& request, http::status status, std::string body,
                     const char* type = "text/plain; charset=utf-8") {
  PageReply made(status, request.version());
  set_common(made, type);
  made.body() = std::move(body);
  made.prepare_payload();
  return made;
}

}  // namespace

struct PageServer::State {
  State(launcher::JobEntry about, Secret needed)
      : job(std::move(about)), token(std::move(needed)), acceptor(loop), journal(job.directory, true) {}

  asio::io_context loop{1};
  launcher::JobEntry job;
  Secret token;
  Tcp::acceptor acceptor;
  JournalTail journal;
  std::vector<std::string> events;  ///< lines of the journal
  std::uint64_t dropped = 0;        ///< older events that are not in `events`
  std::string job_state;            ///< JSON
  std::chrono::steady_clock::time_point refreshed;
  std::size_t clients = 0;

  /// Reads what has changed, once a second at most.
  void refresh() {
    const auto now = std::chrono::steady_clock::now();
    if (!job_state.empty() && now - refreshed < kRefreshEvery) return;
    refreshed = now;
    job_state = page_state(job);
    for (std::string& line : journal.new_lines())
      if (nlohmann::json::accept(line)) events.push_back(std::move(line));  // a full disk cuts lines
    if (events.size() <= kEventsKept) return;
    const std::size_t half = events.size() / 2;
    events.erase(events.begin(), events.begin() + static_cast<std::ptrdiff_t>(half));
    dropped += half;
  }

  bool is_allowed(const PageRequest& request) const {
    const auto header = request[http::field::authorization];
    std::string_view given(header.data(), header.size());
    if (given.starts_with("Bearer "))
      given.remove_prefix(7);
    else
      given = query_value(request, "token");
    return Secret(given) == token;
  }

  PageReply page(const PageRequest& request) const {
    const auto nonce = random_text(16);
    if (!nonce) return make_reply(request, http::status::service_unavailable, nonce.error().text + '\n');
    PageReply made = make_reply(request, http::status::ok, page_html("", *nonce), "text/html; charset=utf-8");
    made.set("Content-Security-Policy",
             "default-src 'none'; style-src 'unsafe-inline'; connect-src 'self'; script-src 'nonce-" +
                 *nonce + "'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
    return made;
  }

  PageReply answer(const PageRequest& request) const {
    if (!is_allowed(request)) {
      return make_reply(request, http::status::unauthorized,
                        "The token is missing or wrong. Open the address that ddplaunch dashboard has "
                        "printed.\n");
    }
    if (request.method() != http::verb::get)
      return make_reply(request, http::status::method_not_allowed, "Only GET is served.\n");
    if (path_of(request) == "/") return page(request);
    if (path_of(request) == "/metrics") {
      const auto text = ask_running_job(job, "GET", "/metrics", kMetricsTime);
      return text ? make_reply(request, http::status::ok, *text, "text/plain; version=0.0.4")
                  : make_reply(request, http::status::service_unavailable,
                               "The job does not run, or does not answer.\n");
    }
    const auto place = path_of(request) == "/output" ? place_of(request) : std::nullopt;
    if (!place) return make_reply(request, http::status::not_found, "There is no such page.\n");
    const auto text = page_output(job, *place);
    return text ? make_reply(request, http::status::ok, *text)
                : make_reply(request, http::status::not_found, "There is no such output.\n");
  }

  /// Sends server-sent events until the page is closed: "journal" with new events, "state" when it changes.
  Awaitable<> feed(Stream& stream, const PageRequest& request) {
    http::response<http::empty_body> head(http::status::ok, request.version());
    set_common(head, "text/event-stream");
    http::response_serializer<http::empty_body> serializer(head);
    const auto [failed, size] = co_await http::async_write_header(stream, serializer, kUseTuple);
    if (failed) co_return;
    asio::steady_timer timer(loop);
    std::string sent_state;
    std::optional<std::uint64_t> next;  // the number of the next event; unset: all are new
    for (;;) {
      refresh();
      std::string text;
      if (!next || *next < dropped) {
        text += "event: restart\ndata: {}\n\n";
        next = dropped;
      }
      std::string lines;
      for (; *next - dropped < events.size(); ++*next)
        lines += (lines.empty() ? "" : ",") + events[*next - dropped];
      if (!lines.empty()) text += "event: journal\ndata: [" + lines + "]\n\n";
      if (job_state != sent_state) {
        text += "event: state\ndata: " + job_state + "\n\n";
        sent_state = job_state;
      }
      if (text.empty()) text = ":\n\n";  // shows that the page is still open
      stream.expires_after(kStalledTime);
      const auto [broken, count] = co_await asio::async_write(stream, asio::buffer(text), kUseTuple);
      if (broken) co_return;
      timer.expires_after(kRefreshEvery);
      (void)co_await timer.async_wait(kUseTuple);
    }
  }

  Awaitable<> serve(Tcp::socket socket) {
    Stream stream(std::move(socket));
    stream.expires_after(kRequestTime);
    boost::beast::flat_buffer buffer(kHeaderBytes);
    http::request_parser<http::empty_body> parser;
    parser.header_limit(kHeaderBytes);
    const auto [error, size] = co_await http::async_read(stream, buffer, parser, kUseTuple);
    if (!error) {
      const PageRequest& request = parser.get();
      if (path_of(request) == "/events" && request.method() == http::verb::get && is_allowed(request)) {
        co_await feed(stream, request);
      } else {
        const PageReply reply = answer(request);
        (void)co_await http::async_write(stream, reply, kUseTuple);
      }
    }
    error_code ignored;
    stream.socket().shutdown(Tcp::socket::shutdown_send, ignored);
    --clients;
  }

  Awaitable<> accept_all() {
    for (;;) {
      auto [error, socket] = co_await acceptor.async_accept(kUseTuple);
      if (error || clients >= kMostClients) {
        asio::steady_timer pause(loop, std::chrono::milliseconds(100));  // descriptors may be short
        (void)co_await pause.async_wait(kUseTuple);
        continue;
      }
      ++clients;
      spawn(loop.get_executor(), serve(std::move(socket)));
    }
  }
};

PageServer::PageServer(std::unique_ptr<State> state) : state_(std::move(state)) {}
PageServer::~PageServer() = default;

Result<std::unique_ptr<PageServer>> PageServer::listen(const std::string& address, std::uint16_t port,
                                                       launcher::JobEntry job, Secret token) {
  auto state = std::make_unique<State>(std::move(job), std::move(token));
  error_code failed;
  const asio::ip::address parsed = asio::ip::make_address(address, failed);
  if (failed) return Error{ErrorCode::kUsage, "--listen " + address + ": not a numeric address"};
  const Tcp::endpoint endpoint(parsed, port);
  state->acceptor.open(endpoint.protocol(), failed);
  if (!failed) state->acceptor.set_option(Tcp::acceptor::reuse_address(true), failed);
  if (!failed) state->acceptor.bind(endpoint, failed);
  if (!failed) state->acceptor.listen(asio::socket_base::max_listen_connections, failed);
  if (failed) return system_error(failed.value(), "--listen " + address + ':' + std::to_string(port));
  return std::unique_ptr<PageServer>(new PageServer(std::move(state)));
}

std::uint16_t PageServer::port() const {
  error_code ignored;
  return state_->acceptor.local_endpoint(ignored).port();
}

void PageServer::run() {
  asio::signal_set signals(state_->loop, SIGINT, SIGTERM);
  signals.async_wait([this](const error_code&, int) { state_->loop.stop(); });
  spawn(state_->loop.get_executor(), state_->accept_all());
  state_->loop.run();
}

namespace {

/// Returns the token that requests for the page must have.
Result<std::string> page_token(const OperateOptions& options) {
  if (options.token_file.empty()) return random_text(16);
  const UniqueFd fd(::open(options.token_file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return system_error(errno, "--token-file " + options.token_file);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0 || (status.st_mode & 077) != 0 || !distrust_file(fd.get()).empty()) {
    return Error{ErrorCode::kUsage, "--token-file " + options.token_file +
                                        ": it must be yours, and readable by you alone (chmod 600)"};
  }
  std::string token = first_line(options.token_file);
  const bool good = token.size() >= 16 && std::all_of(token.begin(), token.end(),
                                                      [](unsigned char c) { return std::isalnum(c) != 0; });
  if (good) return token;
  return Error{ErrorCode::kUsage,
               "--token-file " + options.token_file +
                   ": the first line must have at least 16 letters and digits, and nothing else"};
}

/// Returns the address of the page for a browser. Where the server listens at all addresses, the name of this
/// host stands for them.
std::string page_url(const std::string& address, std::uint16_t port, const std::string& token) {
  const bool is_any = address == "0.0.0.0" || address == "::";
  return "http://" + format_endpoint(is_any ? host_name() : address, port) + "/?token=" + token;
}

}  // namespace

Result<> write_report(const OperateOptions& options, const launcher::JobEntry& job) {
  if (options.output.empty()) {
    return Error{ErrorCode::kUsage,
                 "report needs a file: ddplaunch report -o " + job.job + ".html " + job.job};
  }
  const std::string page = page_html(report_data(job), "");
  if (options.output == "-") {
    print(page);
    return {};
  }
  const UniqueFd fd(::open(options.output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd) return system_error(errno, "-o " + options.output);
  return write_bytes(fd.get(), page, options.output);
}

Result<> serve_page(const OperateOptions& options, const launcher::JobEntry& job) {
  const auto token = DDP_TRY(page_token(options));
  const auto server = DDP_TRY(PageServer::listen(options.address, options.port, job, Secret(token)));
  std::printf("%s\n", page_url(options.address, (server)->port(), token).c_str());
  if (std::fflush(stdout) != 0) return system_error(errno, "standard output");
  std::fprintf(stderr, "ddplaunch: the page of job %s; Ctrl-C ends the page, not the job\n", job.job.c_str());
  (server)->run();
  return {};
}

}  // namespace ddp
