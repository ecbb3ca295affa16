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
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/beast/http.hpp>
#include <nlohmann/json.hpp>

#include "apps/ddplaunch/operate/job_files.h"
#include "base/child_process.h"
#include "base/crypto.h"
#include "base/files.h"
#include "base/program.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "launcher/control/http_server.h"

namespace ddp {
namespace {

using OrderedJson = nlohmann::ordered_json;
using launcher::RunState;

constexpr std::chrono::seconds kStatusTime{1};
constexpr std::size_t kReportRanks = 32;  // in a report
constexpr std::size_t kEventsKept = 20'000;
constexpr std::ptrdiff_t kReportAttempts = 100;

std::string compact(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

/// The lines of a journal that a page gets.
struct EventList {
  std::vector<std::string> lines;
  std::uint64_t dropped = 0;  ///< older events that are not in `lines`

  void add(std::string line) {
    lines.push_back(std::move(line));
    if (lines.size() <= kEventsKept) return;
    bool odd = false;
    drop_if(lines.size(), [&odd](const std::string& old) {
      return old.find(R"("event":"sample")") != std::string::npos && (odd = !odd);
    });
    if (lines.size() > kEventsKept / 2)
      drop_if(lines.size() - kEventsKept / 2, [](const std::string&) { return true; });
  }

 private:
  template <class Condition>
  void drop_if(std::size_t count, Condition condition) {
    const auto end = lines.begin() + static_cast<std::ptrdiff_t>(count);
    const auto kept = std::remove_if(lines.begin(), end, condition);
    dropped += static_cast<std::uint64_t>(end - kept);
    lines.erase(kept, end);
  }
};

OrderedJson events_of(const launcher::JobEntry& job) {
  EventList list;
  visit_events(job.directory,
               [&list](const OrderedJson&, std::string_view line) { list.add(std::string(line)); });
  OrderedJson events = OrderedJson::array();
  for (const std::string& line : list.lines)
    events.push_back(OrderedJson::parse(line));
  return events;
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

namespace {

/// Replaces what would be as long as the job is wide: of failures that only followed, the page shows few.
void shorten(OrderedJson& report) {
  const OrderedJson others = report.value("other_failures", OrderedJson::array());
  OrderedJson kept = OrderedJson::array();
  std::size_t stopped = 0;
  std::size_t more = 0;
  for (const OrderedJson& failure : others) {
    if (failure.is_object() && failure.value("stopped_by_ddplaunch", false))
      ++stopped;
    else if (kept.size() < kReportRanks)
      kept.push_back(failure);
    else
      ++more;
  }
  report["other_failures"] = std::move(kept);
  report["other_stopped"] = stopped;
  report["other_more"] = more;
  OrderedJson& earlier = report["earlier_attempts"];
  if (earlier.is_array() && earlier.size() > kReportAttempts)
    earlier.erase(earlier.begin(), earlier.end() - kReportAttempts);
}

}  // namespace

PageState page_state(const launcher::JobEntry& job) {
  const RunState state = launcher::state_of(job);
  OrderedJson json{{"job", job.job},
                   {"state", launcher::state_name(state.kind)},
                   {"exit_code", state.exit_code ? OrderedJson(*state.exit_code) : OrderedJson()},
                   {"why", state.why},
                   {"started", job.started},
                   {"directory", job.directory},
                   {"command", job.command},
                   {"status", OrderedJson()},
                   {"report", OrderedJson()}};
  if (state.kind == RunState::Kind::kRunning) {
    const auto answer = ask_running_job(job, "GET", "/v1/status", kStatusTime);
    OrderedJson status = OrderedJson::parse(answer ? *answer : "", nullptr, false);
    if (status.is_object() && status.contains("nodes")) json["status"] = std::move(status);
  }
  if (state.kind == RunState::Kind::kEnded) {
    OrderedJson report = launcher::read_report(job.directory);
    if (report.is_object()) {
      shorten(report);
      json["report"] = std::move(report);
    }
  }
  return {compact(json), state.kind == RunState::Kind::kEnded};
}

std::string report_data(const launcher::JobEntry& job) {
  const OrderedJson events = events_of(job);
  OrderedJson lines = OrderedJson::array();
  for (const auto& [attempt, rank] : shown_ranks(events)) {
    OutputTail tail(job.directory, attempt, rank);
    tail.read();
    const OrderedJson answer = tail.answer("");
    for (const char* const part : {"lines", "open"})
      lines.insert(lines.end(), answer[part].begin(), answer[part].end());
  }
  return compact({{"state", OrderedJson::parse(page_state(job).json)}, {"events", events}, {"lines", lines}});
}

bool is_own_host(std::string_view host, bool is_loopback, std::string_view own_name) {
  const std::string name = lower_case(split_endpoint(host).value_or(HostPort{}).host);
  error_code no_address;
  (void)asio::ip::make_address(name, no_address);
  if (!no_address) return true;
  if (name.find(':') != std::string::npos) return false;
  if (name == "localhost" || name.ends_with(".localhost")) return true;
  const std::string own = lower_case(own_name);
  return !is_loopback && (name == own || name.starts_with(own + '.'));
}

namespace {

namespace http = boost::beast::http;
using launcher::HttpClient;
using launcher::HttpReply;
using launcher::HttpRequest;

/// A page that takes no data for this time is closed.
constexpr std::chrono::seconds kStalledTime{30};
constexpr std::chrono::seconds kRefreshEvery{1};
constexpr std::chrono::seconds kMetricsTime{1};
/// Of the list of jobs, which asks each one that runs.
constexpr std::chrono::seconds kListEvery{2};
/// Jobs and selections of output that are kept for the next request.
constexpr std::size_t kFeedsKept = 8;
constexpr std::size_t kTailsKept = 8;
constexpr std::string_view kJobsPath = "/jobs/";
constexpr std::chrono::minutes kIdleCheckEvery{1};
constexpr std::chrono::hours kDetachedIdle{24};

std::string_view target_of(const HttpRequest& request) {
  return {request.target().data(), request.target().size()};
}

std::string_view path_of(const HttpRequest& request) {
  const std::string_view target = target_of(request);
  return target.substr(0, target.find('?'));
}

std::string_view host_of(const HttpRequest& request) {
  const auto host = request[http::field::host];
  return {host.data(), host.size()};
}

/// Returns the value of a key of the query, as it is written; empty: it is missing.
std::string_view query_value(const HttpRequest& request, std::string_view key) {
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

template <class Message>
void set_common(Message& made) {
  made.set(http::field::cache_control, "no-store");
  made.set("X-Content-Type-Options", "nosniff");
  made.set("Referrer-Policy", "no-referrer");  // the address has the token
}

HttpReply make_reply(const HttpRequest& request, http::status status, std::string body,
                     const char* type = "text/plain; charset=utf-8") {
  HttpReply made = launcher::http_reply(request, status, std::move(body), type);
  set_common(made);
  return made;
}

}  // namespace

/// What the server knows of a job whose page is open.
struct PageServer::Feed {
  explicit Feed(launcher::JobEntry about) : job(std::move(about)), journal(job.directory, true) {}

  struct Tail {
    OutputTail tail;
    std::chrono::steady_clock::time_point read = {};
  };
  using Selection = std::pair<std::uint32_t, std::optional<std::uint32_t>>;  ///< attempt, rank

  launcher::JobEntry job;
  JournalTail journal;
  EventList events;
  PageState state;
  std::chrono::steady_clock::time_point refreshed;
  std::map<Selection, Tail> tails;

  /// Reads what has changed, once a second at most.
  void refresh() {
    const auto now = std::chrono::steady_clock::now();
    if (!state.json.empty() && now - refreshed < kRefreshEvery) return;
    refreshed = now;
    if (!state.is_final) state = page_state(job);
    for (std::string& line : journal.new_lines())
      if (nlohmann::json::accept(line)) events.add(std::move(line));  // a full disk cuts lines
  }

  /// Returns the new lines of a selection; unset: it is none, or has no output.
  std::optional<std::string> lines(const HttpRequest& request) {
    const auto attempt = parse_number<std::uint32_t>(query_value(request, "attempt"));
    const std::string_view rank_text = query_value(request, "rank");
    const auto rank = parse_number<std::uint32_t>(rank_text);
    if (!attempt || (!rank && !rank_text.empty())) return {};
    const auto now = std::chrono::steady_clock::now();
    if (tails.size() >= kTailsKept && !tails.contains({*attempt, rank})) {
      tails.erase(std::min_element(tails.begin(), tails.end(), [](const auto& a, const auto& b) {
        return a.second.read < b.second.read;
      }));
    }
    const auto [found, is_new] = tails.try_emplace({*attempt, rank}, Tail{{job.directory, *attempt, rank}});
    Tail& selected = found->second;
    // Two pages of one selection come at different moments.
    if (is_new || now - selected.read >= kRefreshEvery / 2) {
      selected.tail.read();
      selected.read = now;
    }
    if (selected.tail.empty()) {
      tails.erase(found);
      return {};
    }
    return compact(selected.tail.answer(query_value(request, "after")));
  }
};

struct PageServer::State {
  State(PageJobs of, Secret needed) : jobs(std::move(of)), token(std::move(needed)) {}

  asio::io_context loop{1};
  PageJobs jobs;
  Secret token;
  std::uint16_t port = 0;
  bool is_loopback = true;                             ///< it listens on loopback only
  std::map<std::string, std::shared_ptr<Feed>> feeds;  ///< by the name of the job's entry
  std::string list;                                    ///< JSON
  std::chrono::steady_clock::time_point listed;
  std::size_t pages = 0;  ///< that are open
  std::optional<launcher::HttpServer> server;
  std::chrono::steady_clock::time_point last_client = std::chrono::steady_clock::now();

  /// Returns the job that a path is about, and removes its part "/jobs/NAME" from the path. Null: none.
  std::shared_ptr<Feed> feed_of(std::string_view& path) {
    std::string name = jobs.only ? jobs.only->name : "";
    if (!jobs.only) {
      if (!path.starts_with(kJobsPath)) return nullptr;
      path.remove_prefix(kJobsPath.size());
      name = path.substr(0, path.find('/'));
      path.remove_prefix(name.size());
    }
    if (const auto found = feeds.find(name); found != feeds.end()) return found->second;
    std::optional<launcher::JobEntry> job = jobs.only;
    if (!job) {
      for (launcher::JobEntry& entry : jobs.read())
        if (entry.name == name) job = std::move(entry);
    }
    if (!job) return nullptr;
    if (feeds.size() >= kFeedsKept)
      std::erase_if(feeds, [](const auto& feed) { return feed.second.use_count() == 1; });
    return feeds[name] = std::make_shared<Feed>(std::move(*job));
  }

  bool is_allowed(const HttpRequest& request) const {
    const auto header = request[http::field::authorization];
    std::string_view given(header.data(), header.size());
    if (given.starts_with("Bearer "))
      given.remove_prefix(7);
    else
      given = query_value(request, "token");
    return Secret(given) == token;
  }

  static HttpReply page(const HttpRequest& request, http::status status, bool of_job) {
    const auto nonce = random_text(16);
    if (!nonce) return make_reply(request, http::status::service_unavailable, nonce.error().text + '\n');
    const char* const data = of_job ? R"({"page": "job"})" : R"({"page": "jobs"})";
    HttpReply made = make_reply(request, status, page_html(data, *nonce), "text/html; charset=utf-8");
    made.set("Content-Security-Policy",
             "default-src 'none'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; script-src "
             "'nonce-" +
                 *nonce + "'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
    return made;
  }

  /// Returns the reply to a request without the token. The page has no data of the job in itself. A browser
  /// that loads it again gets it, and the page sends the token that it has kept.
  HttpReply refusal(const HttpRequest& request) const {
    const std::string_view path = path_of(request);
    const bool of_job = jobs.only || path.starts_with(kJobsPath);
    if (request.method() == http::verb::get && (path == "/" || (of_job && path.ends_with('/'))))
      return page(request, http::status::unauthorized, of_job);
    return make_reply(
        request, http::status::unauthorized,
        "The token is missing or wrong. Open the address that ddplaunch dashboard has printed.\n");
  }

  HttpReply answer(const HttpRequest& request) {
    if (!is_own_host(host_of(request), is_loopback, host_name())) {
      return make_reply(request, http::status::misdirected_request,
                        "The Host header names another host. Use an address or localhost.\n");
    }
    if (!is_allowed(request)) return refusal(request);
    if (request.method() != http::verb::get)
      return make_reply(request, http::status::method_not_allowed, "Only GET is served.\n");
    std::string_view path = path_of(request);
    if (!jobs.only && path == "/") return page(request, http::status::ok, false);
    if (!jobs.only && path == "/jobs.json") {
      const auto now = std::chrono::steady_clock::now();
      if (list.empty() || now - listed >= kListEvery) list = jobs.list(jobs.read());
      listed = std::chrono::steady_clock::now();
      return make_reply(request, http::status::ok, list, "application/json");
    }
    const std::shared_ptr<Feed> feed = feed_of(path);
    if (!feed) return make_reply(request, http::status::not_found, "There is no such page.\n");
    if (path == "/") return page(request, http::status::ok, true);
    if (path == "/metrics") {
      const auto text = ask_running_job(feed->job, "GET", "/metrics", kMetricsTime);
      return text ? make_reply(request, http::status::ok, *text, "text/plain; version=0.0.4")
                  : make_reply(request, http::status::service_unavailable,
                               "The job does not run, or does not answer.\n");
    }
    if (path != "/lines") return make_reply(request, http::status::not_found, "There is no such page.\n");
    auto lines = feed->lines(request);
    return lines ? make_reply(request, http::status::ok, std::move(*lines), "application/json")
                 : make_reply(request, http::status::not_found, "There is no such output.\n");
  }

  /// Sends server-sent events until the page is closed: "journal" with new events, "state" when it changes.
  Awaitable<> send_events(HttpClient& client, std::shared_ptr<Feed> of) {
    Feed& feed = *of;
    client.let_stay();
    http::response<http::empty_body> head(http::status::ok, client.request.version());
    head.set(http::field::content_type, "text/event-stream");
    head.keep_alive(false);
    set_common(head);
    http::response_serializer<http::empty_body> serializer(head);
    const auto [failed, size] = co_await http::async_write_header(client.socket, serializer, kUseTuple);
    if (failed) co_return;
    asio::steady_timer timer(loop);
    std::string sent_state;
    std::optional<std::uint64_t> next;  // the number of the next event; unset: all are new
    for (;;) {
      feed.refresh();
      std::string text;
      if (!next || *next < feed.events.dropped) {
        text += "event: restart\ndata: {}\n\n";
        next = feed.events.dropped;
      }
      std::string lines;
      for (; *next - feed.events.dropped < feed.events.lines.size(); ++*next)
        lines += (lines.empty() ? "" : ",") + feed.events.lines[*next - feed.events.dropped];
      if (!lines.empty()) text += "event: journal\ndata: [" + lines + "]\n\n";
      if (feed.state.json != sent_state) {
        text += "event: state\ndata: " + feed.state.json + "\n\n";
        sent_state = feed.state.json;
      }
      if (text.empty()) text = ":\n\n";  // shows that the page is still open
      client.close_after(kStalledTime);
      const auto [broken, count] = co_await asio::async_write(client.socket, asio::buffer(text), kUseTuple);
      if (broken) co_return;
      timer.expires_after(kRefreshEvery);
      (void)co_await timer.async_wait(kUseTuple);
    }
  }

  static Awaitable<std::optional<HttpReply>> serve(State* self, HttpClient& client) {
    const HttpRequest& request = client.request;
    std::string_view path = path_of(request);
    const bool wants_events = path.ends_with("/events") && request.method() == http::verb::get &&
                              is_own_host(host_of(request), self->is_loopback, host_name()) &&
                              self->is_allowed(request);
    std::shared_ptr<Feed> feed = wants_events ? self->feed_of(path) : nullptr;
    self->last_client = std::chrono::steady_clock::now();
    if (!feed || path != "/events") co_return self->answer(request);
    if (self->pages >= kMostPages)
      co_return make_reply(request, http::status::service_unavailable, "Too many pages are open.\n");
    ++self->pages;
    co_await self->send_events(client, std::move(feed));
    --self->pages;
    self->last_client = std::chrono::steady_clock::now();
    co_return std::nullopt;
  }

  Awaitable<> end_when_idle(std::chrono::seconds idle) {
    asio::steady_timer timer(loop);
    while (pages > 0 || std::chrono::steady_clock::now() - last_client < idle) {
      timer.expires_after(kIdleCheckEvery);
      (void)co_await timer.async_wait(kUseTuple);
    }
    loop.stop();
  }
};

PageServer::PageServer(std::unique_ptr<State> state) : state_(std::move(state)) {}
PageServer::~PageServer() = default;

Result<std::unique_ptr<PageServer>> PageServer::listen(const std::string& address, std::uint16_t port,
                                                       PageJobs jobs, Secret token) {
  auto place = DDP_TRY(within("--listen", launcher::listen_http(address, port)));
  auto state = std::make_unique<State>(std::move(jobs), std::move(token));
  state->is_loopback = place.address.is_loopback();
  state->port = place.listener.port;
  const launcher::HttpServer::Handler handler = [served = state.get()](HttpClient& client) {
    return State::serve(served, client);
  };
  state->server.emplace(DDP_TRY(launcher::HttpServer::start(
      state->loop.get_executor(), std::move(place.listener), {kMostClients}, handler)));
  return std::unique_ptr<PageServer>(new PageServer(std::move(state)));
}

std::uint16_t PageServer::port() const {
  return state_->port;
}

void PageServer::run(std::optional<std::chrono::seconds> idle) {
  asio::signal_set signals(state_->loop, SIGINT, SIGTERM);
  signals.async_wait([this](const error_code&, int) { state_->loop.stop(); });
  if (idle) spawn(state_->loop.get_executor(), state_->end_when_idle(*idle));
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
  if (options.output.empty() && !options.json) {
    return Error{ErrorCode::kUsage,
                 "report needs a file: ddplaunch report -o " + job.job + ".html " + job.job};
  }
  std::string page;
  if (options.json) {
    const auto report = launcher::read_report(job.directory);
    if (report.empty())
      return Error{ErrorCode::kUsage,
                   "job " + job.job + " has no report in " + job.directory +
                       ": it has not ended, or its ddplaunch was killed; ddplaunch status --json " + job.job +
                       " shows how it stands"};
    page = report.dump(2) + '\n';
  } else {
    page = page_html(report_data(job), "");
  }
  if (options.output == "-" || options.output.empty()) {
    print(page);
    return {};
  }
  const UniqueFd fd(::open(options.output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd) return system_error(errno, "-o " + options.output);
  return write_bytes(fd.get(), page, options.output);
}

namespace {

/// Leaves the terminal and the shell, and all descriptors of the caller but `kept`.
void leave_caller(int kept) {
  leave_terminal();
  if (kept > STDERR_FILENO + 1) close_descriptors(STDERR_FILENO + 1, static_cast<unsigned>(kept) - 1);
  close_descriptors(static_cast<unsigned>(kept) + 1, ~0U);
}

/// Serves in a child, and returns the port with its pid. The child tells the port, or the error: kind and
/// text.
Result<std::pair<std::uint16_t, pid_t>> serve_in_background(const OperateOptions& options, PageJobs jobs,
                                                            Secret token) {
  auto [answer, report] = DDP_TRY(make_pipe("pipe"));
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) return system_error(errno, "fork");
  if (child == 0) {
    answer.reset();
    leave_caller(report.get());
    const auto server = PageServer::listen(options.address, options.port, std::move(jobs), std::move(token));
    const std::string text =
        server ? "0 " + std::to_string((*server)->port())
               : std::to_string(static_cast<int>(server.error().code) + 1) + ' ' + server.error().text;
    (void)write_bytes(report.get(), text, "pipe");
    report.reset();
    if (server) (*server)->run(kDetachedIdle);
    ::_exit(0);
  }
  report.reset();
  std::string text;
  char part[512];
  for (ssize_t count = 0; (count = ::read(answer.get(), part, sizeof part)) > 0;)
    text.append(part, static_cast<std::size_t>(count));
  const std::size_t blank = text.find(' ');
  const auto code = parse_number<int>(std::string_view(text).substr(0, blank));
  if (!code || blank == std::string::npos)
    return Error{ErrorCode::kSystem, "the process that serves the page ended"};
  const std::string rest = text.substr(blank + 1);
  if (*code != 0) return Error{static_cast<ErrorCode>(*code - 1), rest};
  return std::pair(parse_number<std::uint16_t>(rest).value_or(0), child);
}

}  // namespace

Result<> serve_page(const OperateOptions& options, PageJobs jobs) {
  const auto token = DDP_TRY(page_token(options));
  const std::string about = jobs.only ? "the page of job " + jobs.only->job : "the pages of all jobs";
  const auto print_url = [&](std::uint16_t port) -> Result<> {
    std::printf("%s\n", page_url(options.address, port, token).c_str());
    if (std::fflush(stdout) != 0) return system_error(errno, "standard output");
    return {};
  };
  if (options.detach) {
    const auto served = DDP_TRY(serve_in_background(options, std::move(jobs), Secret(token)));
    DDP_TRY(print_url(served.first));
    std::fprintf(stderr, "ddplaunch: %s; kill %d ends it\n", about.c_str(), static_cast<int>(served.second));
    return {};
  }
  const auto server =
      DDP_TRY(PageServer::listen(options.address, options.port, std::move(jobs), Secret(token)));
  DDP_TRY(print_url(server->port()));
  std::fprintf(stderr, "ddplaunch: %s; Ctrl-C ends the page, not the job\n", about.c_str());
  server->run();
  return {};
}

}  // namespace ddp
