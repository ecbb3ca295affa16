// Runs the scenario files of tests/scenarios/membership. Each event is a line. The indented lines below it
// are exactly the actions that Membership must return, in order. The README there explains the words.
#include "rendezvous/membership/membership.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/format_text.h"
#include "tests/support/catch.h"

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;
using Words = std::vector<std::string>;

Words split_words(const std::string& line, char between = ' ') {
  std::istringstream in(line);
  Words words;
  for (std::string word; std::getline(in, word, between);)
    if (!word.empty()) words.push_back(word);
  return words;
}

std::string quoted(const std::string& line) {
  const auto first = line.find('"');
  return first == std::string::npos ? "" : line.substr(first + 1, line.rfind('"') - first - 1);
}

std::string outcome_name(Outcome outcome) {
  switch (outcome) {
    case Outcome::kDone:
      return "done";
    case Outcome::kFailed:
      return "failed";
    case Outcome::kNodeLost:
      return "node-lost";
    case Outcome::kTooFew:
      return "too-few";
    case Outcome::kLeftovers:
      return "leftovers";
    case Outcome::kUser:
      return "user";
  }
  return "?";
}

std::string cause_name(StopCause cause) {
  switch (cause) {
    case StopCause::kFailure:
      return "failure";
    case StopCause::kScaleUp:
      return "scale-up";
    case StopCause::kUser:
      return "user";
  }
  return "?";
}

class Scenario {
 public:
  void run(const std::filesystem::path& file) {
    std::ifstream in(file);
    REQUIRE(in);
    int number = 0;
    for (std::string line; std::getline(in, line);) {
      ++number;
      const Words words = split_words(line);
      if (words.empty() || words[0][0] == '#') continue;
      INFO(file.filename().string() << ":" << number << ": " << line);
      if (line[0] == ' ') {
        REQUIRE(next_ < said_.size());
        CHECK(said_[next_++] == line.substr(line.find_first_not_of(' ')));
        continue;
      }
      nothing_more();
      said_.clear();
      next_ = 0;
      command(words, line);
    }
    INFO(file.filename().string() << ": at the end");
    nothing_more();
  }

 private:
  void nothing_more() {
    for (; next_ < said_.size(); ++next_)
      FAIL_CHECK("unexpected action: " << said_[next_]);
  }

  HostNumber host(const std::string& name) {
    const auto found = std::find(names_.begin(), names_.end(), name);
    if (found == names_.end()) {
      names_.push_back(name);
      return static_cast<HostNumber>(names_.size() - 1);
    }
    return static_cast<HostNumber>(found - names_.begin());
  }

  std::string describe(const MemberAction& action) {
    std::ostringstream text;
    if (const auto* begin = std::get_if<Begin>(&action)) {
      text << "begin " << begin->attempt << ":";
      for (const RankAssignment& assignment : begin->world.assignments)
        text << " " << names_[assignment.host] << "=" << assignment.first_rank << "+"
             << assignment.local_world_size;
    } else if (const auto* stop = std::get_if<StopAttempt>(&action)) {
      text << "stop " << stop->attempt << " " << cause_name(stop->cause) << " \"" << stop->reason << "\"";
      if (stop->another != (stop->cause == StopCause::kScaleUp))
        text << (stop->another ? " another" : " last");
    } else if (const auto* drop = std::get_if<Drop>(&action)) {
      text << "drop " << names_.at(drop->host) << " \"" << drop->reason << "\"";
      if (incarnations_[drop->host] == drop->incarnation) there_.erase(drop->host);
    } else if (const auto* recall = std::get_if<RecallHost>(&action)) {
      text << "recall " << names_[recall->host];
    } else if (const auto* reported = std::get_if<NotifyUser>(&action)) {
      text << "tell \"" << reported->text << "\"";
    } else if (const auto* ended = std::get_if<EndJob>(&action)) {
      text << "end " << outcome_name(ended->outcome) << " \"" << ended->reason << "\"";
      if (!ended->no_restart.empty()) text << " not \"" << ended->no_restart << "\"";
    } else if (const auto* wait = std::get_if<BackOff>(&action)) {
      text << "back-off " << wait->restart << " (" << format_duration(wait->wait) << ") \"" << wait->reason
           << "\"";
    }
    return text.str();
  }

  void give(const Sender& from, const MemberEvent& event) {
    for (const MemberAction& action : membership_->step(from, event, now_))
      said_.push_back(describe(action));
  }
  void give(HostNumber from, const MemberEvent& event) {
    give({job_, attempt_, from, incarnation_ ? *incarnation_ : incarnations_[from]}, event);
  }

  /// Present nodes that are not silent are heard every half second.
  void pass(Membership::Time time) {
    for (const auto until = now_ + time; now_ < until;) {
      const auto due = membership_->deadline().value_or(until);
      const auto beat = (now_ / 500ms + 1) * 500ms;
      now_ = std::min({std::max(due, now_ + 1ns), Membership::Time(beat), until});
      if (now_ % 500ms == 0ns) {
        for (const HostNumber node : std::set<HostNumber>(there_))
          if (!silent_.contains(node)) give({"job", 0, node, incarnations_[node]}, Heartbeat{});
      }
      if (now_ >= due) give(Sender{}, Tick{});
    }
  }

  void make(const Words& words) {
    MembershipRules rules;
    rules.job = "job";
    std::map<std::string, MembershipRules::Duration*> times{
        {"join-limit", &rules.join_limit},     {"admission-window", &rules.admission_window},
        {"settle", &rules.debounce},           {"suspect", &rules.suspect_after},
        {"node-timeout", &rules.node_timeout}, {"lease", &rules.lease},
        {"stop-time", &rules.stop_time},       {"backoff", &rules.backoff},
        {"fruitful", &rules.fruitful_after},   {"fault-window", &rules.fault_window},
        {"cool-down", &rules.cool_down},       {"recall-every", &rules.recall_every}};
    std::map<std::string, int*> numbers{{"min", &rules.min_nodes},
                                        {"max", &rules.max_nodes},
                                        {"spares", &rules.spares},
                                        {"restarts", &rules.max_restarts},
                                        {"faults", &rules.host_faults}};
    for (std::size_t i = 1; i < words.size(); ++i) {
      const auto equals = words[i].find('=');
      const std::string key = words[i].substr(0, equals);
      const std::string value = equals == std::string::npos ? "" : words[i].substr(equals + 1);
      INFO(words[i]);
      if (key == "hosts")
        rules.hosts = names_ = split_words(value, ',');
      else if (key == "recall")
        rules.recall = true;
      else if (key == "fence")
        rules.fence = value == "all" ? Fence::kAll : value == "off" ? Fence::kOff : Fence::kRank0;
      else if (key == "scale-up-now")
        rules.scale_up_now = true;
      else if (times.contains(key))
        *times[key] = std::chrono::milliseconds(std::stol(value));
      else
        *numbers.at(key) = std::stoi(value);
    }
    membership_.emplace(rules);
    give(Sender{}, Tick{});
  }

  void command(const Words& words, const std::string& line) {
    const std::string& verb = words[0];
    const auto option = [&](const std::string& key, int otherwise) {
      for (const std::string& word : words)
        if (word.rfind(key + "=", 0) == 0) return std::stoi(word.substr(key.size() + 1));
      return otherwise;
    };
    const auto text = [&](const std::string& key) {
      for (const std::string& word : words)
        if (word.rfind(key + "=", 0) == 0) return word.substr(key.size() + 1);
      return std::string();
    };
    const auto flag = [&](const std::string& word) {
      return std::find(words.begin(), words.end(), word) != words.end();
    };
    if (verb == "rules") {
      make(words);
    } else if (verb == "join") {
      const HostNumber node = host(words.at(1));
      if (!incarnation_) ++incarnations_[node];
      there_.insert(node);
      give(node, Joined{option("slots", 1), text("as"), static_cast<std::uint32_t>(option("gone", 0))});
    } else if (verb == "pass") {
      pass(std::chrono::milliseconds(std::stol(words.at(1))));
    } else if (verb == "sleep") {  // of the master
      now_ += std::chrono::milliseconds(std::stol(words.at(1)));
      give(Sender{}, Tick{});
    } else if (verb == "silent") {
      silent_.insert(host(words.at(1)));
    } else if (verb == "loud") {
      silent_.erase(host(words.at(1)));
    } else if (verb == "heard") {
      give(host(words.at(1)), Heartbeat{});
    } else if (verb == "lost") {
      there_.erase(host(words.at(1)));
      give(host(words.at(1)), LinkLost{quoted(line), flag("dead")});
    } else if (verb == "workers-gone") {
      give(host(words.at(1)), WorkersGone{});
    } else if (verb == "absent") {
      give(host(words.at(1)), Absent{quoted(line)});
    } else if (verb == "failed") {
      give(host(words.at(1)), WorkerFailed{quoted(line), flag("non_retryable")});
    } else if (verb == "ended") {
      give(host(words.at(1)), NodeEnded{static_cast<std::uint32_t>(option("left", 0))});
    } else if (verb == "waits") {
      give(host(words.at(1)), NodeWaits{});
    } else if (verb == "refused") {
      give(host(words.at(1)), NodeRefused{quoted(line), !flag("perhaps")});
    } else if (verb == "progress") {
      give(host(words.at(1)), AttemptProgress{});
    } else if (verb == "fails") {
      give(Sender{"job", attempt_, 0, 0}, AttemptFailed{quoted(line), flag("non_retryable")});
    } else if (verb == "user") {
      give(Sender{}, UserStop{quoted(line)});
    } else if (verb == "attempt") {  // of the following events
      attempt_ = static_cast<std::uint32_t>(std::stoul(words.at(1)));
    } else if (verb == "job") {
      job_ = words.at(1);
    } else if (verb == "life") {  // of the following events; -: the last one
      incarnation_.reset();
      if (words.at(1) != "-") incarnation_ = static_cast<std::uint32_t>(std::stoul(words[1]));
    } else {
      FAIL("unknown command: " << verb);
    }
  }

  std::optional<Membership> membership_;
  Membership::Time now_{0};
  std::vector<std::string> names_;
  std::map<HostNumber, std::uint32_t> incarnations_;
  std::optional<std::uint32_t> incarnation_;
  std::set<HostNumber> there_;
  std::set<HostNumber> silent_;
  std::string job_ = "job";
  std::uint32_t attempt_ = 0;
  std::vector<std::string> said_;
  std::size_t next_ = 0;
};

TEST_CASE("membership scenarios") {
  const std::filesystem::path folder = std::filesystem::path(DDP_SOURCE_DIR) / "tests/scenarios/membership";
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".txt") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  REQUIRE(files.size() >= 20);
  for (const auto& file : files)
    Scenario().run(file);
}

}  // namespace
}  // namespace ddp::rendezvous
