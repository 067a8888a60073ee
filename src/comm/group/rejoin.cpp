// See rejoin.h; group.cpp has the first connection of ordinary groups.
#include "hasten/comm/group/rejoin.h"

#include <algorithm>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "comm/backend/loopback.h"
#include "comm/group/group_impl.h"
#include "hasten/comm/types/wait_check.h"
#include "hasten/flight/page_notes.h"

namespace hasten::comm {
namespace {

Group::Impl& impl_of(const Group& group) noexcept {
  return *static_cast<const Group::Impl::OwnedOptions&>(group.options()).owner;
}

// A TCP store of the library's own has a port.
bool is_adopted(const Store& store) {
  c10d::Store* native = store.native();
  while (auto* const scope = dynamic_cast<c10d::PrefixStore*>(native)) native = scope->getUnderlyingStore().get();
  return store.port() == 0 && dynamic_cast<c10d::TCPStore*>(native) != nullptr;
}

}  // namespace

void Group::Impl::stand_in(std::shared_ptr<Meetings> own) {
  meetings = std::move(own);
  if (alone()) return;
  cpu_ = make_loopback(rank, world_size);
  stands_in_ = true;
  connected_ = true;
}

bool Group::Impl::is_broken() const noexcept {
  if (broken_ || failed_) return true;
  const auto parts = children();
  return std::any_of(parts.begin(), parts.end(), [](const auto& group) { return group->is_broken(); });
}

// Transfers that their callers still hold keep the backends, whose closing has ended them.
void Group::Impl::leave_meeting() noexcept {
  failed_ = true;
  watch_.reset();
  close_backends();
  {
    const std::lock_guard lock(orphans_mutex_);
    abandoned_.clear();
  }
  {
    const std::lock_guard lock(open_mutex_);
    for (OpenCall& call : open_) call.end.end_on_device(0);
    open_.clear();
  }
  {
    const std::lock_guard lock(lanes_mutex_);
    channels_.clear();
  }
  const std::lock_guard lock(backends_mutex_);
  connected_ = false;
  made_device_ = nullptr;
  device_.reset();
  cpu_.reset();
  keys_.reset();
}

void Group::Impl::rejoin(const Store& store, std::chrono::milliseconds limit) {
  const bool connects = !options.lazy || (connected_ && !stands_in_);
  leave_meeting();
  // The newcomer's numbers begin anew, so all do.
  if (recorder_ && recorder_group_ >= 0) flight::forget_calls(recorder_->page(), recorder_group_);
  sequence_ = 0;
  stands_in_ = false;
  rejoined_ = true;
  meeting_timeout_ = limit;
  run_store = store;
  failed_ = broken_ = false;
  // A rank that ends while the others connect is replaced by one that asks for the next meeting.
  const WaitCheck until_superseded([this] { return !failure(); });
  try {
    if (connects) connect();
  } catch (const WaitInterrupted& error) {
    throw CommError(origin(), "connect", failure().value_or(error.what()));
  }
  for (const auto& child : children()) child->rejoin(store, limit);
}

void Meetings::meet(const Group& group, std::chrono::milliseconds timeout) {
  const auto begin = std::chrono::steady_clock::now();
  const Store keys = generations_.enter(timeout);
  const auto used = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin);
  rejoin(group, keys, std::max(timeout - used, std::chrono::milliseconds(1)));
}

std::list<MeetingPart>::const_iterator Meetings::add(MeetingPart part) {
  return parts_.insert(parts_.end(), std::move(part));
}

void Meetings::remove(std::list<MeetingPart>::const_iterator part) noexcept {
  parts_.erase(part);
}

std::vector<std::string> Meetings::states() const {
  std::vector<std::string> states;
  for (const auto& part : parts_) states.push_back(part.state());
  return states;
}

void Meetings::load_states(const std::vector<std::string>& states) const {
  if (states.size() != parts_.size()) {
    throw UsageError(Origin{"comm"}, "a meeting with ", states.size(), " parts of another rank, where this one has ",
                     parts_.size(), ". Make the same objects on all ranks before they meet.");
  }
  auto state = states.begin();
  for (const auto& part : parts_) part.load_state(*state++);
}

void Meetings::leave() const {
  for (const auto& part : parts_) part.leave();
}

Group stand_in(int rank, int world_size, const GroupOptions& given, std::shared_ptr<Meetings> meetings) {
  GroupOptions options = given;
  options.lazy = true;  // the store is never asked
  const Group group = Group::connect(Store::in_process(), rank, world_size, options);
  impl_of(group).options.lazy = given.lazy;
  impl_of(group).stand_in(std::move(meetings));
  return group;
}

bool stands_in(const Group& group) noexcept {
  return impl_of(group).stands_in();
}

std::shared_ptr<Meetings> meetings_of(const Group& group) noexcept {
  return impl_of(group).meetings;
}

bool is_broken(const Group& group) noexcept {
  return impl_of(group).is_broken();
}

void rejoin(const Group& group, const Store& store, std::chrono::milliseconds timeout) {
  Group::Impl& impl = impl_of(group);
  if (impl.alone()) return;
  if (is_adopted(store) || (impl.run_store && is_adopted(*impl.run_store))) {
    throw UsageError(impl.origin(), "rejoin of group '", impl.options.name,
                     "' over a store that another library made (Store::adopt): a rank that is replaced cannot open it "
                     "again. Connect the group at a store of Store::tcp.");
  }
  impl.rejoin(store, timeout);
}

}  // namespace hasten::comm
