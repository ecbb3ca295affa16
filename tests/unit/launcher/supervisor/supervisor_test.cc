// The stage of tests/scenarios/supervisor: exactly the actions that the supervisor returns follow each event.
#include "launcher/supervisor/supervisor.h"
#include "launcher/report/report_json.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <deque>
#include <memory>
#include <set>
#include <sstream>

#include "base/exit_status.h"
#include "launcher/job/output_credit.h"
#include "rendezvous/protocol/codec.h"
#include "tests/support/catch.h"
#include "tests/support/scenario.h"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;

using test::quoted_text;
using test::Words;

std::string state_name(Supervisor::State state) {
  switch (state) {
    case Supervisor::State::kConnecting: return "connecting";
    case Supervisor::State::kBackingOff: return "backing-off";
    case Supervisor::State::kStarting: return "starting";
    case Supervisor::State::kRunning: return "running";
    case Supervisor::State::kStopping: return "stopping";
    case Supervisor::State::kEnding: return "ending";
    case Supervisor::State::kLeaving: return "leaving";
    case Supervisor::State::kFinished: return "finished";
  }
  return "?";
}

/// Returns an action as in a scenario: the message, and the fields that the supervisor decided.
std::string describe(const job::Action& action) {
  if (const auto* drop = std::get_if<job::Disconnect>(&action))
    return "disconnect " + std::to_string(drop->node);
  if (const auto* words = std::get_if<job::PrintLine>(&action)) return "say \"" + words->text + "\"";
  if (const auto* waiting = std::get_if<job::Waiting>(&action))
    return (waiting->due ? "log \"" : "show \"") + waiting->text + "\"";
  if (const auto* dump = std::get_if<job::Dump>(&action))
    return "dump " + std::to_string(dump->rank) + " \"" + dump->text + "\"";
  if (const auto* recall = std::get_if<job::Recall>(&action)) return "recall " + std::to_string(recall->node);
  if (const auto* sweep = std::get_if<job::SweepNode>(&action)) return "sweep " + std::to_string(sweep->node);
  if (std::holds_alternative<job::HangAnswered>(action)) return "answer";
  const auto& send = std::get<job::ToNode>(action);
  std::string text =
      "to " + std::to_string(send.node) + " " + std::string(rendezvous::message_name(send.message));
  if (const auto* start = std::get_if<rendezvous::JobStart>(&send.message)) {
    for (const std::uint32_t pid : start->predecessor)
      text += " predecessor=" + std::to_string(pid);
  } else if (const auto* inspect = std::get_if<rendezvous::Inspect>(&send.message)) {
    if (!inspect->debuggers) text += inspect->texts ? " stall" : " asked";
  } else if (const auto* spawn = std::get_if<rendezvous::Spawn>(&send.message)) {
    text += " first=" + std::to_string(spawn->first_rank) +
            " local=" + std::to_string(spawn->local_world_size) +
            " world=" + std::to_string(spawn->world_size) + " master=" + spawn->master_addr + ":" +
            std::to_string(spawn->master_port);
    if (spawn->attempt > 0) text += " attempt=" + std::to_string(spawn->attempt);
    if (spawn->from >= 0) text += " from=" + std::to_string(spawn->from);
  } else if (const auto* revoke = std::get_if<rendezvous::Revoke>(&send.message)) {
    text += " " + std::to_string(revoke->attempt) + " \"" + revoke->reason + "\"";
    for (const std::uint32_t rank : revoke->kill)
      text += " kill=" + std::to_string(rank);
  } else if (const auto* stop = std::get_if<rendezvous::Stop>(&send.message)) {
    if (stop->signal != SIGTERM) text += " " + signal_name(stop->signal);
    text += " grace=" + std::to_string(stop->grace_ms) + " \"" + stop->reason + "\"";
  } else if (const auto* signal = std::get_if<rendezvous::Signal>(&send.message)) {
    text += " " + signal_name(signal->number);
  } else if (const auto* probe = std::get_if<rendezvous::Probe>(&send.message)) {
    for (const std::string& address : probe->addresses)
      text += " " + address;
  }
  return text;
}

class SupervisorStage : public test::Stage {
 public:
  std::vector<std::string> act(const Words& words, const std::string& line) override {
    actions_.clear();
    command(words, line);
    std::vector<std::string> follows;
    for (const job::Action& action : actions_)
      follows.push_back(describe(action));
    return follows;
  }

 private:
  void feed(const job::Event& event) {
    actions_.clear();
    journal_.clear();
    details_.clear();
    add(event);
  }
  void add(const job::Event& event) { check_later(supervisor_->step(event, now_)); }
  void check_later(job::Actions actions) {
    for (const auto& action : actions) {
      if (const auto* event = std::get_if<JournalEvent>(&action)) journal_ += journal_line(*event, 0, {});
      if (const auto* detail = std::get_if<job::Detail>(&action)) details_ += detail->text + '\n';
    }
    std::move(actions.begin(), actions.end(), std::back_inserter(actions_));
    // Lines for --verbose, the job's line at the start, and the journal decide nothing.
    std::erase_if(actions_, [](const auto& action) {
      const auto* line = std::get_if<job::PrintLine>(&action);
      return std::holds_alternative<job::Detail>(action) || std::holds_alternative<JournalEvent>(action) ||
             (line != nullptr && line->terminal_only);
    });
  }
  /// Gives Ticks when they are due; nodes that are up are heard twice a second.
  void pass(job::Time time) {
    actions_.clear();
    journal_.clear();
    details_.clear();
    const auto until = now_ + time;
    for (auto heard = now_ + 500ms; now_ < until;) {
      const auto due = supervisor_->deadline().value_or(until);
      now_ = std::min({until, std::max(due, now_ + 1ms), heard});
      add(job::Tick{});
      if (now_ < heard) continue;
      heard += 500ms;
      for (const std::size_t node : up_)
        add(job::NodeHeartbeat{node, incarnation(node)});
    }
  }
  /// Incarnation of the node's link.
  std::uint32_t& incarnation(std::size_t node) {
    incarnations_.resize(std::max(incarnations_.size(), node + 1), 1);
    return incarnations_[node];
  }
  void feed_message(std::size_t node, const rendezvous::Message& message) {
    feed(job::FromNode{node, message, now_ - ago_, job::Time(0), incarnation(node)});
  }

  void command(const Words& words, const std::string& line) {
    const std::string& verb = words[0];
    const auto number = [&](std::size_t i) { return static_cast<std::uint32_t>(std::stoul(words.at(i))); };
    if (verb == "ago") {  // ago MILLISECONDS EVENT…
      ago_ = std::chrono::milliseconds(number(1));
      command({words.begin() + 2, words.end()}, line);
      ago_ = Supervisor::Time(0);
    } else if (verb == "attempt") {  // of the following messages
      attempt_ = number(1);
    } else if (verb == "missing") {  // node rank: its program does not exist
      rendezvous::WorkerExited exited;
      exited.attempt = attempt_;
      exited.rank = number(2);
      exited.code = 127;
      exited.sys = ENOENT;
      exited.text = "no such program";
      feed_message(number(1), exited);
    } else if (verb == "spec") {
      make_spec(words);
    } else if (verb == "time") {
      now_ += std::chrono::milliseconds(number(1));
      actions_.clear();
      journal_.clear();
      details_.clear();
      for (const std::size_t node : up_)
        if (supervisor_->nodes()[node].has_workers()) add(job::NodeHeartbeat{node, incarnation(node)});
      add(job::Tick{});
    } else if (verb == "pass") {
      pass(std::chrono::milliseconds(number(1)));
    } else if (verb == "step") {  // node "text"
      steps_.push_back(quoted_text(line));
      supervisor_->set_start_step(number(1), steps_.back().c_str());
    } else if (verb == "silent") {
      up_.erase(number(1));
    } else if (verb == "up") {
      up_.insert(number(1));
      if (lost_.erase(number(1)) > 0) ++incarnation(number(1));
      rendezvous::Hello hello;
      hello.machine_id = one_machine_ ? "m" : "m" + words[1];
      hello.hostname = "node" + words[1];
      hello.cpus = 4;
      if (words.size() > 2) {  // up NODE PID-NAMESPACE
        hello.pid = number(1) * 1000 + incarnation(number(1)) * 100;
        hello.keeper = hello.pid + 1;
        hello.pid_namespace = number(2);
      }
      if (number(1) < gpus_.size()) hello.gpus = gpus_[number(1)];
      hello.interfaces = {{"lo", "127.0.0.1", 8, true, true}};
      if (networks_ > 1) hello.interfaces.push_back({"eth1", "10.1.0.1" + words[1], 24, true, false});
      if (!one_machine_) hello.interfaces.push_back({"eth0", "10.0.0.1" + words[1], 24, true, false});
      feed(job::NodeUp{number(1), hello, one_machine_ ? "127.0.0.1" : "10.0.0.1" + words[1],
                       incarnation(number(1)), true});
    } else if (verb == "failed") {
      feed(job::NodeFailed{number(1), Error{ErrorCode::kUnreachable, quoted_text(line), 0}});
    } else if (verb == "gone") {
      up_.erase(number(1));
      lost_.insert(number(1));
      const std::string why = line.find('"') != std::string::npos ? quoted_text(line) : "the link was closed";
      const bool dead = words.size() > 2 && words.back() == "dead";
      const bool left = words.size() > 2 && words.back() == "left";
      feed(job::NodeGone{number(1), Error{ErrorCode::kLinkLost, why, 0}, dead, incarnation(number(1)), left});
    } else if (verb == "swept") {  // node [empty|found] "text"
      feed(job::NodeSwept{number(1), incarnation(number(1)), quoted_text(line), words.at(2) != "left",
                          words.at(2) == "found" || words.at(2) == "left"});
    } else if (verb == "not-swept") {  // node "text"
      feed(job::NodeSwept{number(1), incarnation(number(1)), quoted_text(line)});
    } else if (verb == "broken") {
      up_.erase(number(1));
      feed(job::LinkEnded{number(1), Error{ErrorCode::kLinkLost, "the link was closed", 0},
                          incarnation(number(1))});
    } else if (verb == "heard") {
      feed(job::NodeHeartbeat{number(1), incarnation(number(1))});
    } else if (verb == "signal") {
      const std::map<std::string, int> numbers{
          {"INT", SIGINT}, {"TERM", SIGTERM}, {"HUP", SIGHUP}, {"USR1", SIGUSR1}};
      feed(job::UserSignal{numbers.at(words[1]), words.size() > 2 && words[2] == "now"});
    } else if (verb == "accepted") {
      rendezvous::JobAccepted accepted{"/bin/x"};
      accepted.predecessor_gone = words.size() > 2 && words[2] == "predecessor-gone";
      if (words.size() > 2 && !accepted.predecessor_gone) accepted.infiniband = {words[2]};
      accepted.no_infiniband = quoted_text(line);
      feed_message(number(1), accepted);
    } else if (verb == "refused") {
      feed_message(number(1), rendezvous::Refused{ErrorCode::kRefused, 0, quoted_text(line)});
    } else if (verb == "leaves") {  // node [SIGTERM] "text"
      feed_message(number(1), rendezvous::Refused{ErrorCode::kLinkLost,
                                                  words.at(2) == "SIGTERM" ? SIGTERM : 0, quoted_text(line)});
    } else if (verb == "store") {
      feed_message(number(1), rendezvous::StoreOpened{attempt_, static_cast<std::uint16_t>(number(2))});
    } else if (verb == "probed") {
      feed_message(number(1),
                   rendezvous::ProbeResult{attempt_, words.at(2) == "-" ? "" : words[2], quoted_text(line)});
    } else if (verb == "exit" || verb == "kill" || verb == "late-kill" || verb == "end-code" ||
               verb == "end" || verb == "gives-up" || verb == "non-retryable" ||
               verb == "end-non-retryable") {
      // node rank code-or-signal; end: its end began after a signal of its agent; late-kill: so did a SIGKILL
      // of others
      rendezvous::WorkerExited exited;
      exited.attempt = attempt_;
      exited.rank = number(2);
      exited.pid = 100 + exited.rank;
      const bool code = verb != "kill" && verb != "late-kill" && verb != "end";
      exited.non_retryable = verb.ends_with("non-retryable");
      exited.gave_up = verb == "gives-up";
      (code ? exited.code : exited.signal) = static_cast<std::uint8_t>(number(3));
      exited.after_stop = verb.starts_with("end");
      exited.late_kill = verb == "late-kill";
      if (words.size() > 4) exited.attempt = number(4);
      feed_message(number(1), exited);
    } else if (verb == "ended") {
      feed_message(number(1),
                   rendezvous::AttemptEnded{attempt_, words.size() > 2 ? number(2) : 0, "pid 7 (x)"});
    } else if (verb == "greeted") {  // node
      feed_message(number(1), rendezvous::WorkersGreeted{attempt_});
    } else if (verb == "ready") {  // node
      feed_message(number(1), rendezvous::WorkersReady{attempt_});
    } else if (verb == "trouble") {  // node rank [peer=RANK] "text"
      rendezvous::WorkerInTrouble trouble{attempt_, number(2), quoted_text(line), {}};
      if (words.at(3).starts_with("peer="))
        trouble.peers.push_back(static_cast<std::uint32_t>(std::stoul(words[3].substr(5))));
      feed_message(number(1), trouble);
    } else if (verb == "stderr") {  // rank "text": output of a failed worker
      supervisor_->set_last_output(static_cast<int>(number(1)), {quoted_text(line)}, "");
    } else if (verb == "revoked") {  // node local:step… or local:- for a worker without state
      rendezvous::AttemptRevoked revoked;
      revoked.attempt = attempt_;
      for (std::size_t i = 2; i < words.size(); ++i) {
        const std::string step = words[i].substr(words[i].find(':') + 1);
        revoked.survivors.push_back({static_cast<std::uint32_t>(std::stoul(words[i])), step != "-",
                                     step == "-" ? 0 : std::stoull(step)});
      }
      feed_message(number(1), revoked);
    } else if (verb == "killed-by-revoke") {  // node rank "text"
      rendezvous::WorkerExited exited;
      exited.attempt = attempt_;
      exited.rank = number(2);
      exited.pid = 100 + exited.rank;
      exited.signal = SIGKILL;
      exited.by_revoke = true;
      exited.text = quoted_text(line);
      feed_message(number(1), exited);
    } else if (verb == "started") {  // node rank pid
      feed_message(number(1), rendezvous::WorkerStarted{attempt_, number(2), number(3)});
    } else if (verb == "quiet" || verb == "alive") {  // node
      feed_message(number(1), rendezvous::Quiet{attempt_, verb == "quiet", 0, false});
    } else if (verb == "ask-hang") {
      feed(job::AskHang{});
    } else if (verb == "inspection") {  // node rank state, and a text that the scenario does not name
      rendezvous::Inspection inspection;
      inspection.attempt = attempt_;
      inspection.rank = number(2);
      inspection.state = quoted_text(line);
      inspection.text = "stacks";
      feed_message(number(1), inspection);
    } else if (verb == "inspection-at") {  // node rank step state
      rendezvous::Inspection inspection;
      inspection.attempt = attempt_;
      inspection.rank = number(2);
      inspection.steps = true;
      inspection.step = number(3);
      inspection.state = quoted_text(line);
      feed_message(number(1), inspection);
    } else if (verb == "only-stacks-follow") {  // node
      rendezvous::Inspection facts;
      facts.attempt = attempt_;
      facts.only_stacks_follow = true;
      feed_message(number(1), facts);
    } else if (verb == "inspected") {  // node
      rendezvous::Inspection last;
      last.attempt = attempt_;
      last.last = true;
      feed_message(number(1), last);
    } else if (verb == "collectives") {  // node rank world-size: the rank waits in its first operation
      const std::string log = "{\"schema\":\"ddp-flight-recorder/1\",\"rank\":" + words.at(2) +
                              ",\"world_size\":" + words.at(3) + ",\"attempt\":" + std::to_string(attempt_) +
                              ",\"reason\":\"\"}\n"
                              "{\"sequence\":1,\"kind\":\"barrier\",\"bytes\":0,\"type\":\"bytes\","
                              "\"started\":5,\"finished\":0}\n";
      feed_message(number(1), rendezvous::WorkerCollectives{attempt_, number(2), log});
    } else if (verb == "line") {  // node rank rule "text"
      feed(
          job::WatchedLine{number(1), attempt_, number(2), number(3), quoted_text(line), now_, job::Time(0)});
    } else if (verb == "state") {
      CHECK(state_name(supervisor_->state()) == words[1]);
    } else if (verb == "verdict") {  // the text of hang_json
      const OrderedJson verdict = hang_json(supervisor_->end().hang);
      const std::string text = verdict.is_null()
                                   ? "none"
                                   : verdict.value("state", "") + ' ' + verdict.value("confidence", "") +
                                         " \"" + verdict.value("text", "") + '"';
      CHECK(text == line.substr(line.find(' ') + 1));
    } else if (verb == "code") {
      CHECK(make_exit_report(supervisor_->end()).exit_code == static_cast<int>(number(1)));
    } else if (verb == "journal") {  // text of a line that was recorded since the last input
      CHECK(journal_.find(line.substr(line.find(' ') + 1)) != std::string::npos);
    } else if (verb == "journal-not") {
      CHECK(journal_.find(line.substr(line.find(' ') + 1)) == std::string::npos);
    } else if (verb == "detail") {  // a line for --verbose since the last input
      CHECK(details_.find(line.substr(line.find(' ') + 1)) != std::string::npos);
    } else if (verb == "says") {
      const std::string text = make_exit_report(supervisor_->end()).text;
      INFO(text);
      CHECK(text.find(quoted_text(line)) != std::string::npos);
    } else if (verb == "says-not") {
      const std::string text = make_exit_report(supervisor_->end()).text;
      INFO(text);
      CHECK(text.find(quoted_text(line)) == std::string::npos);
    } else {
      FAIL("no such command: " << verb);
    }
  }

  void make_spec(const Words& words) {
    for (std::size_t i = 1; i < words.size(); ++i) {
      const auto equals = words[i].find('=');
      const std::string key = words[i].substr(0, equals);
      const std::string value = words[i].substr(equals + 1);
      if (key == "nodes") {
        for (int node = 0; node < std::stoi(value); ++node) {
          remote::Host host;
          host.name = "node" + std::to_string(node);
          spec_.hosts.push_back(host);
        }
      } else if (key == "slots") {  // slots=2,1
        std::istringstream in(value);
        std::size_t node = 0;
        for (std::string count; std::getline(in, count, ',');)
          spec_.hosts.at(node++).slots = std::stoi(count);
      } else if (key == "nproc") {
        spec_.nproc = {rendezvous::ProcsRule::kNumber, std::stoi(value)};
      } else if (key == "machines") {
        one_machine_ = value == "1";
      } else if (key == "networks") {
        networks_ = std::stoi(value);
      } else if (key == "gpus") {  // gpus=2,0
        std::istringstream in(value);
        for (std::string count; std::getline(in, count, ',');)
          gpus_.push_back(static_cast<std::uint32_t>(std::stoul(count)));
      } else if (key == "restarts") {
        spec_.max_restarts = std::stoi(value);
      } else if (key == "backoff") {  // milliseconds
        spec_.restart_backoff = std::chrono::milliseconds(std::stoi(value));
      } else if (key == "node-timeout") {  // seconds
        spec_.node_timeout = std::chrono::seconds(std::stoi(value));
      } else if (key == "hang") {  // seconds
        spec_.hang_timeout = std::chrono::seconds(std::stoi(value));
        spec_.job_dir = "/jobs/j";
      } else if (key == "stall") {  // seconds
        spec_.report_stalls = std::chrono::seconds(std::stoi(value));
        spec_.job_dir = "/jobs/j";
      } else if (key == "nnodes") {  // nnodes=2 or nnodes=2:4
        const auto colon = value.find(':');
        spec_.max_nodes = std::stoi(value.substr(colon == std::string::npos ? 0 : colon + 1));
        if (colon != std::string::npos) spec_.min_nodes = std::stoi(value);
      } else if (key == "spares") {
        spec_.spares = std::stoi(value);
      } else if (key == "scale-up") {
        spec_.scale_up_now = value == "now";
      } else if (key == "launcher") {
        spec_.launcher = value == "slurm"  ? LauncherKind::kSlurm
                         : value == "join" ? LauncherKind::kJoin
                                           : LauncherKind::kSsh;
      } else if (key == "watch") {  // watch=fail: "fail" is the pattern, too
        for (std::size_t action = 0; action < WatchRule::kActions.size(); ++action)
          if (value == WatchRule::kActions.at(action))
            spec_.watch.push_back({value, static_cast<WatchRule::Action>(action)});
      } else if (key == "store") {
        spec_.store = value == "worker" ? StoreMode::kWorker : StoreMode::kAgent;
      } else {
        FAIL("no such key: " << key);
      }
    }
    spec_.job_id = "j";
    supervisor_ = std::make_unique<Supervisor>(spec_);
    actions_.clear();
    check_later(supervisor_->start(now_));
  }

  JobSpec spec_;
  bool one_machine_ = true;
  int networks_ = 1;
  std::vector<std::uint32_t> gpus_;
  std::uint32_t attempt_ = 0;
  std::vector<std::uint32_t> incarnations_;
  std::set<std::size_t> up_;  ///< nodes that are heard
  std::deque<std::string> steps_;
  std::set<std::size_t> lost_;
  Supervisor::Time ago_{0};  ///< how long before its arrival the message's event happened
  std::unique_ptr<Supervisor> supervisor_;
  Supervisor::Time now_ = 1000s;
  job::Actions actions_;
  std::string journal_;  ///< lines that the last input recorded
  std::string details_;  ///< lines for --verbose that the last input caused
};

TEST_CASE("the supervisor passes its scenarios") {
  test::run_scenarios("supervisor", 80, std::make_unique<SupervisorStage>);
}

TEST_CASE("a terminal shows at the start where the job is, unless --quiet") {
  for (const bool quiet : {false, true}) {
    JobSpec spec;
    spec.job_id = "run7";
    spec.job_dir = "/jobs/run7";
    spec.quiet = quiet;
    spec.nproc = {rendezvous::ProcsRule::kNumber, 4};
    spec.launcher = LauncherKind::kJoin;  // only there a node says how many workers it runs
    spec.hosts.resize(2);
    spec.hosts[0].name = "a";
    spec.hosts[1].name = "b";
    Supervisor supervisor(spec);
    supervisor.start(0s);
    std::vector<std::string> shown;
    for (const std::size_t node : {0U, 1U}) {
      rendezvous::Hello hello;
      hello.machine_id = "m";
      hello.cpus = 4;
      hello.workers = node == 0 ? 0 : 8;
      supervisor.step(job::NodeUp{node, hello, ""}, 1s);
      for (const job::Action& action :
           supervisor.step(job::FromNode{node, rendezvous::JobAccepted{"/bin/x"}, 1s}, 1s)) {
        const auto* line = std::get_if<job::PrintLine>(&action);
        if (line != nullptr && line->terminal_only) shown.push_back(line->text);
      }
    }
    CHECK(shown == (quiet ? std::vector<std::string>{}
                          : std::vector<std::string>{"job run7: 2 nodes, 12 workers, files in /jobs/run7"}));
  }
}

TEST_CASE("the names of nodes that join do not depend on their order, and outlive a loss") {
  JobSpec spec;
  spec.job_id = "j";
  spec.launcher = LauncherKind::kJoin;
  spec.min_nodes = 2;
  spec.max_nodes = 3;
  spec.hosts.resize(3);
  spec.hosts[0].name = "vm";
  spec.hosts[1].name = "node1";
  spec.hosts[2].name = "node2";
  const auto join = [](Supervisor& supervisor, std::size_t node, const std::string& host) {
    rendezvous::Hello hello;
    hello.hostname = host;
    (void)supervisor.step(job::NodeUp{node, hello, ""}, 1000s);
    return supervisor.nodes()[node].name;
  };
  Supervisor one_host(spec);
  (void)one_host.start(1000s);
  CHECK(join(one_host, 1, "vm") == "node1");
  CHECK(join(one_host, 0, "vm") == "vm");
  CHECK(join(one_host, 2, "vm") == "node2");
  Supervisor returned(spec);  // the host returns in another slot
  (void)returned.start(1000s);
  CHECK(join(returned, 2, "gpu02") == "gpu02");
  (void)returned.step(job::NodeFailed{2, Error{ErrorCode::kLinkLost, "gone", 0}}, 1000s);
  CHECK(join(returned, 1, "gpu02") == "gpu02");
}

TEST_CASE("the credit is divided among the running nodes, for any number of hosts") {
  JobSpec spec;
  spec.job_id = "j";
  spec.max_nodes = 1;
  spec.hosts.resize(64);
  for (remote::Host& host : spec.hosts)
    host.name = "node";
  Supervisor supervisor(spec);
  (void)supervisor.start(1000s);
  const job::Actions actions = supervisor.step(job::NodeUp{0, {}, ""}, 1000s);
  std::uint32_t credit = 0;
  for (const job::Action& action : actions) {
    const auto* send = std::get_if<job::ToNode>(&action);
    const auto* start = send != nullptr ? std::get_if<rendezvous::JobStart>(&send->message) : nullptr;
    if (start != nullptr) credit = start->credit;
  }
  // The master gives credit back in pieces that depend on the same number of nodes.
  CHECK(credit == credit_window(supervisor.nodes().size()));
  CHECK(credit > credit_piece(supervisor.nodes().size()));
}

TEST_CASE("the harness detects a failing scenario") {
  // A scenario with a wrong expectation must not pass: the whole description of an action is compared.
  CHECK(describe(job::Disconnect{3}) == "disconnect 3");
  CHECK(describe(job::ToNode{1, rendezvous::Stop{0, 5, "r"}}) == "to 1 Stop grace=5 \"r\"");
}

}  // namespace
}  // namespace ddp::launcher
