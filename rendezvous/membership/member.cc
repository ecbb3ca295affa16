#include "rendezvous/membership/member.h"

#include <utility>

namespace ddp::rendezvous {

Member::Actions Member::step(const Event& event, Time now) {
  if (quitted_) return {};
  // An order that arrives after the end of the lease is too late, so check the lease first.
  if (lease_.over(now)) go("no message from the master arrived during the lease", grace_);
  if (!quitted_) std::visit([&](const auto& e) { on(e, now); }, event);
  return std::exchange(actions_, {});
}

std::optional<Member::Time> Member::deadline() const {
  if (quitted_ || leaving_ || lease_.asleep()) return {};
  return lease_.ends_at();
}

/// Attempt numbers increase: an attempt that was run or stopped here does not begin again.
void Member::on(const Run& order, Time) {
  if (leaving_ || running_ || order.attempt <= attempt_) return;
  attempt_ = order.attempt;
  running_ = true;
  actions_.emplace_back(StartWorkers{order.attempt});
}

void Member::on(const Stop& order, Time) {
  if (order.attempt < attempt_) return;
  if (order.attempt == attempt_ && running_) {
    actions_.emplace_back(EndWorkers{order.attempt, order.grace, "ordered by the master"});
  } else if (order.attempt > attempt_ && !running_) {
    attempt_ = order.attempt;  // the attempt never began here
    actions_.emplace_back(SayEnded{order.attempt});
  }
}

void Member::on(const Pinged&, Time now) {
  if (leaving_) return;  // the workers are being stopped for good, so the lease needs no renewal
  lease_.pinged(now);
  actions_.emplace_back(SayPong{});
}

void Member::on(const MasterAsleep&, Time) {
  lease_.master_asleep();
}

void Member::on(const Leave&, Time) {
  go("ordered by the master", Time(0));
}

void Member::on(const LinkLost&, Time) {
  go("the link to the master is lost", grace_);
}

void Member::on(const WorkersGone& event, Time) {
  if (!running_ || event.attempt != attempt_) return;
  running_ = false;
  if (!leaving_) {
    actions_.emplace_back(SayEnded{event.attempt});
    return;
  }
  // SayEnded would mean a normal end. The end of the link, with a goodbye, reports this one.
  quitted_ = true;
  actions_.emplace_back(Quit{*leaving_});
}

void Member::on(const Tick&, Time) {}

void Member::go(std::string reason, Time grace) {
  if (leaving_ && grace > Time(0)) return;
  if (!leaving_) leaving_ = std::move(reason);
  if (running_) {
    actions_.emplace_back(EndWorkers{static_cast<std::uint32_t>(attempt_), grace, *leaving_});
    return;
  }
  quitted_ = true;
  actions_.emplace_back(Quit{*leaving_});
}

}  // namespace ddp::rendezvous
