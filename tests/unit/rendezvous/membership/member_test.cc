#include "rendezvous/membership/member.h"

#include <string>

#include "tests/support/catch.h"

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;

std::string text_of(const Member::Actions& actions) {
  std::string text;
  for (const Member::Action& action : actions) {
    if (!text.empty()) text += ", ";
    if (const auto* start = std::get_if<Member::StartWorkers>(&action))
      text += "start " + std::to_string(start->attempt);
    else if (const auto* end = std::get_if<Member::EndWorkers>(&action))
      text += "end " + std::to_string(end->attempt) + " in " + std::to_string(end->grace / 1s);
    else if (const auto* ended = std::get_if<Member::SayEnded>(&action))
      text += "ended " + std::to_string(ended->attempt);
    else if (std::holds_alternative<Member::SayPong>(action))
      text += "pong";
    else if (const auto* quit = std::get_if<Member::Quit>(&action))
      text += "quit: " + quit->reason;
  }
  return text;
}

TEST_CASE("lease: a ping renews the lease from the previous pong, which the master has received") {
  NodeLease lease(15s, 100s);
  CHECK(lease.ends_at() == 115s);
  lease.pinged(101s);  // the hello was heard; the pong for this ping perhaps not
  CHECK(lease.ends_at() == 115s);
  lease.pinged(110s);
  CHECK(lease.ends_at() == 116s);
  CHECK_FALSE(lease.over(116s - 1ns));
  CHECK(lease.over(116s));
}

TEST_CASE("lease: it has no end while the user has suspended the master") {
  NodeLease lease(15s, 0s);
  lease.master_asleep();
  CHECK_FALSE(lease.over(1h));
  lease.pinged(1h);  // it has woken up
  CHECK(lease.ends_at() == 1h + 15s);
}

TEST_CASE("member: runs an attempt once, and not after its stop") {
  Member member(15s, 5s, 0s);
  CHECK(text_of(member.step(Member::Run{0}, 1s)) == "start 0");
  CHECK(text_of(member.step(Member::Run{0}, 1s)).empty());
  CHECK(text_of(member.step(Member::Run{1}, 1s)).empty());  // the first attempt still runs
  CHECK(text_of(member.step(Member::Stop{0, 15s}, 2s)) == "end 0 in 15");
  CHECK(text_of(member.step(Member::WorkersGone{0}, 3s)) == "ended 0");
  CHECK(text_of(member.step(Member::WorkersGone{0}, 3s)).empty());
  CHECK(text_of(member.step(Member::Run{0}, 4s)).empty());
  CHECK(text_of(member.step(Member::Stop{1, 15s}, 4s)) == "ended 1");  // this attempt never began here
  CHECK(text_of(member.step(Member::Run{1}, 4s)).empty());
  CHECK(text_of(member.step(Member::Run{2}, 4s)) == "start 2");
  CHECK(text_of(member.step(Member::Stop{1, 0s}, 4s)).empty());
  CHECK(text_of(member.step(Member::WorkersGone{1}, 4s)).empty());
}

TEST_CASE("member: ends its workers when the lease is over, and refuses later orders") {
  Member member(15s, 5s, 0s);
  member.step(Member::Run{0}, 1s);
  CHECK(member.deadline() == 15s);
  CHECK(member.keeper_kills_at() == 20s);
  CHECK(text_of(member.step(Member::Pinged{}, 15s)) == "end 0 in 5");
  CHECK(member.deadline() == std::nullopt);
  CHECK(text_of(member.step(Member::Tick{}, 16s)).empty());
  CHECK(text_of(member.step(Member::WorkersGone{0}, 17s)) ==
        "quit: no message from the master arrived during the lease");
  CHECK(member.quitted());
  CHECK(text_of(member.step(Member::Run{1}, 17s)).empty());
}

TEST_CASE("member: a lost link and an order to leave end it") {
  Member lost(15s, 5s, 0s);
  lost.step(Member::Run{0}, 1s);
  CHECK(text_of(lost.step(Member::LinkLost{}, 2s)) == "end 0 in 5");
  CHECK(text_of(lost.step(Member::Leave{}, 3s)) == "end 0 in 0");
  Member idle(15s, 5s, 0s);
  CHECK(text_of(idle.step(Member::Pinged{}, 1s)) == "pong");
  CHECK(text_of(idle.step(Member::Leave{}, 2s)) == "quit: ordered by the master");
}

TEST_CASE("member: a suspended master is waited for") {
  Member member(15s, 5s, 0s);
  member.step(Member::Run{0}, 1s);
  member.step(Member::MasterAsleep{}, 2s);
  CHECK(member.deadline() == std::nullopt);
  CHECK(member.keeper_kills_at() == std::nullopt);
  CHECK(text_of(member.step(Member::Tick{}, 1h)).empty());
}

}  // namespace
}  // namespace ddp::rendezvous
