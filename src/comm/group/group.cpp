// Making, connecting, splitting and failing groups; see group.h and group_impl.h.
#include "hasten/comm/group/group.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <set>
#include <thread>

#include <torch/types.h>

#include "comm/backend/device_backend.h"
#include "comm/backend/mpi.h"
#include "comm/group/group_impl.h"
#include "comm/group/split.h"
#include "comm/store/answer_limit.h"
#include "comm/types/call_advice.h"
#include "hasten/comm/types/wait_check.h"
#include "hasten/core/env.h"
#include "hasten/core/timeout.h"

namespace hasten::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kFailureKey = "hasten/failure";

constexpr int64_t kSharedMegabytes = 32;

// A longer timeout is this one: no clock can be set to the end of milliseconds::max().
constexpr std::chrono::milliseconds kForEver = std::chrono::hours(24 * 365);

// Options that are left open get the environment's values.
GroupOptions with_environment(GroupOptions options, const Environment& environment) {
  require_timeout(Origin{"comm"}, options.timeout);
  options.timeout = std::min(options.timeout, kForEver);
  if (!options.check) options.check = environment.flag("HASTEN_DEBUG").value_or(false);
  if (options.network_interface.empty())
    options.network_interface = environment.text("GLOO_SOCKET_IFNAME").value_or("");
  if (options.backend == BackendKind::kAuto) {
    const auto name = environment.choice("HASTEN_BACKEND", {"auto", "gloo", "shm", "nccl", "mpi"}).value_or("auto");
    if (name == "gloo") options.backend = BackendKind::kGloo;
    if (name == "shm") options.backend = BackendKind::kSharedMemory;
    if (name == "nccl") options.backend = BackendKind::kNccl;
    if (name == "mpi") options.backend = BackendKind::kMpi;
  }
  if (!options.shared_bytes) {
    const int64_t most = std::numeric_limits<int64_t>::max() >> 20;
    options.shared_bytes = environment.integer("HASTEN_SHM_MB", 1, most).value_or(kSharedMegabytes) << 20;
  }
  if (*options.shared_bytes < 1) {
    throw UsageError(Origin{"comm"}, "shared_bytes is ", *options.shared_bytes,
                     "; expected a number of bytes for each rank, or nothing for ", kSharedMegabytes, " MB.");
  }
  return options;
}

std::string seconds(std::chrono::milliseconds time) {
  return text(static_cast<double>(time.count()) / 1000, " s");
}

// When the ranks that are there name those that are not.
constexpr std::chrono::milliseconds kFirstWords = std::chrono::seconds(10);

// Ranks that have met again connect at once, or one of them has ended since.
constexpr std::chrono::milliseconds kLongestConnecting = std::chrono::seconds(30);

constexpr const char* kStoreIsGone =
    "the store is gone: the process that served it (rank 0, or the launcher) has ended or is stopped. Look at its "
    "output.";

// For the lowest rank that is there; the missing ones write nothing themselves.
void name_missing(const Group::Impl& group, const std::vector<int>& missing, std::chrono::milliseconds timeout) {
  Logger("comm", {group.rank, group.world_size})
      .warning(text("rank ", join(missing), " of ", group.world_size, " has not come to group '", group.options.name,
                    "' for ", seconds(kFirstWords), "; the others wait until the timeout (", seconds(timeout), ")."),
               {.main_process_only = false});
}

// Waits for the other ranks at the store before any connection is tried, so that a missing rank can be named. Returns
// the number of the gathering. It distinguishes groups of one name on one store.
int64_t meet(const Group::Impl& group, const Store& store, std::chrono::milliseconds timeout) {
  const int64_t arrivals = store.add("arrivals", 1);
  const int64_t meeting = (arrivals - 1) / group.world_size;
  const auto key = [meeting](int rank) { return text("here/", meeting, '/', rank); };
  if (!store.set_once(key(group.rank), "1")) {
    throw UsageError(group.origin(), "two processes came as rank ", group.rank, " of group '", group.options.name,
                     "'. Give each its own RANK, or start them with hasten launch.");
  }
  const auto missing_ranks = [&] {
    std::vector<int> missing;
    for (int rank = 0; rank < group.world_size; ++rank) {
      if (!store.get(key(rank))) missing.push_back(rank);
    }
    return missing;
  };
  const auto deadline = Clock::now() + timeout;
  auto words_due = Clock::now() + kFirstWords;
  auto pause = std::chrono::milliseconds(1);
  while (store.add("arrivals", 0) < (meeting + 1) * group.world_size) {
    if (const auto message = group.failure()) throw CommError(group.origin(), "connect", *message);
    if (Clock::now() > words_due) {
      const auto missing = missing_ranks();
      int lowest = 0;
      while (std::find(missing.begin(), missing.end(), lowest) != missing.end()) ++lowest;
      if (lowest == group.rank && !missing.empty()) name_missing(group, missing, timeout);
      words_due = Clock::time_point::max();
    }
    if (Clock::now() > deadline) {
      throw CommError(group.origin(), "connect", "after ", seconds(timeout), " rank ", join(missing_ranks()), " of ",
                      group.world_size, " had not come to group '", group.options.name,
                      "'. Look at the output of the missing ranks, or raise the timeout.");
    }
    WaitCheck::run();
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(20));
  }
  return meeting;
}

}  // namespace

Group::Impl::Impl(int rank_, int world_size_, GroupOptions options_)
    : rank(rank_),
      world_size(world_size_),
      options{{std::move(options_)}, this},
      timeout_(options.timeout),
      logger_("comm", {rank, world_size}) {}

Group::Impl::~Impl() {
  if (fork_depth() != fork_depth_) {
    // A forked child has none of the threads that the backends would wait for, and is none of the ranks.
    (void)new std::shared_ptr<Backend>(std::move(cpu_));
    (void)new std::shared_ptr<Backend>(std::move(device_));
    (void)watch_.release();
    (void)new std::optional<Store>(std::move(run_store));
    return;
  }
  // A backend's destructor waits for its running transfers. If this rank is failing they may never end.
  watch_.reset();
  if (failed_ || std::uncaught_exceptions() > 0) close_backends();
  for (OpenCall& call : open_) call.end.end_on_device(0);
  if (recorder_) recorder_->close_group(recorder_group_);
}

void Group::Impl::close_backends() noexcept {
  const std::lock_guard lock(backends_mutex_);
  for (Backend* backend : {cpu_.get(), device_.get()}) {
    if (backend != nullptr) backend->close();
  }
}

void Group::Impl::set_timeout(std::chrono::milliseconds timeout) {
  timeout_ = std::min(timeout, kForEver);
  const std::lock_guard lock(backends_mutex_);
  for (Backend* backend : {cpu_.get(), device_.get()}) {
    if (backend != nullptr) backend->set_timeout(timeout_);
  }
}

Backend& Group::Impl::cpu() {
  connect();
  return *cpu_;
}

Backend& Group::Impl::backend_for(const at::Tensor& tensor) {
  connect();
  Backend* const device = tensor.is_cuda() && !stands_in_ ? device_backend(tensor.device()) : nullptr;
  return device != nullptr ? *device : *cpu_;
}

Backend* Group::Impl::device_backend(c10::Device device) {
  if (options.backend == BackendKind::kGloo || options.backend == BackendKind::kSharedMemory) return nullptr;
  if (Backend* const made = made_device_) return made;
  if (!has_device_backend()) return nullptr;
  const std::lock_guard lock(connect_mutex_);
  if (made_device_) return made_device_;
  auto backend = make_device_backend({keys_->scoped("nccl"), rank, world_size, options}, *cpu_);
  // A store that is gone is no failure: a rank may have ended with all that it had to do.
  const auto look = [this]() -> std::optional<std::string> {
    end_done_calls(true);
    if (failed_) return "";
    auto message = failure();
    return message == kStoreIsGone ? std::nullopt : std::move(message);
  };
  watch_ = std::make_unique<FailureWatch>(device, look, [this] { close_after_peer(); });
  const std::lock_guard publish(backends_mutex_);
  device_ = std::move(backend);
  if (timeout() != options.timeout) device_->set_timeout(timeout());
  return made_device_ = device_.get();
}

void Group::Impl::connect() {
  if (connected_ || alone()) return;
  const std::lock_guard lock(connect_mutex_);
  if (connected_) return;
  if (recorder_ && recorder_group_ < 0) {
    recorder_group_ = recorder_->open_group(options.name, rank, world_size, options.timeout.count());
  }
  const RecordedCall meeting(recorder_.get(), recorder_group_, OpType::kBarrier, std::source_location::current(),
                             {.kind = flight::CallKind::kMeeting});
  const Store keys = run_store->scoped(options.name);
  const auto limit = meeting_timeout_.value_or(options.timeout);
  GroupOptions connecting = options;
  if (meeting_timeout_) connecting.timeout = std::min({options.timeout, limit, kLongestConnecting});
  const BackendSetup setup{keys.scoped(std::to_string(meet(*this, keys, limit))), rank, world_size, connecting};
  try {
    auto backend = make_cpu_backend(setup);
    // No rank leaves before all are connected. A rank with nothing to do would close its end while others still build
    // theirs.
    wait(*backend->barrier(), OpType::kBarrier);
    const std::lock_guard publish(backends_mutex_);
    cpu_ = std::move(backend);
    keys_ = setup.store;
    if (timeout() != connecting.timeout) cpu_->set_timeout(timeout());
    connected_ = true;
  } catch (const UsageError&) {
    throw;
  } catch (const std::exception& error) {
    throw CommError(origin(), "connect", "the ranks of group '", options.name, "' could not be connected from '",
                    options.address, "': ", failure().value_or(error.what()));
  }
}

void Group::Impl::require_connected(CallName kind) const {
  if (connected_ || alone()) return;
  throw UsageError(
      origin(), name_of(kind), " is the first operation of the lazy group '", options.name,
      "', whose ranks connect at their first collective. Call connect_backends() on all of its ranks before.");
}

std::string Group::Impl::backend_name() const {
  if (alone()) return "none";
  const std::lock_guard lock(backends_mutex_);
  if (!cpu_) return "not connected";
  return device_ ? device_->name() : cpu_->name();
}

void Group::Impl::check_open(CallName kind) const {
  if (!failed_) return;
  throw CommError(origin(), name_of(kind), name_of(kind), " called on group '", options.name,
                  "' after this rank failed", failure() ? " (" + *failure() + ")" : "", ". Connect a new group.");
}

void Group::Impl::check_rank(int peer, const char* role, CallName kind) const {
  if (peer >= 0 && peer < world_size) return;
  throw UsageError(origin(), name_of(kind), ": ", role, " is rank ", peer, ", but group '", options.name,
                   "' has ranks 0 to ", world_size - 1, '.');
}

std::vector<Fingerprint> Group::Impl::agree(Fingerprint record) {
  record.sequence = sequence_++;
  const auto mine = torch::empty({static_cast<int64_t>(sizeof(Fingerprint))}, at::kByte);
  std::memcpy(mine.data_ptr(), &record, sizeof(Fingerprint));
  const auto all = torch::empty({world_size * static_cast<int64_t>(sizeof(Fingerprint))}, at::kByte);
  wait(*cpu().all_gather(all, mine), record.kind);
  std::vector<Fingerprint> records(world_size);
  std::memcpy(static_cast<void*>(records.data()), all.data_ptr(), all.nbytes());
  if (const auto difference = disagreement(records)) {
    throw CommError(origin(), name_of(record.kind), "the ranks of group '", options.name, "' disagree: ", *difference);
  }
  return records;
}

void Group::Impl::wait(Backend::Transfer& transfer, CallName kind, const CallLabel& label) const {
  try {
    transfer.wait();
  } catch (...) {
    rethrow_named(kind, label);
  }
}

void Group::Impl::rethrow_named(CallName kind, const CallLabel& label) const {
  try {
    throw;
  } catch (const CommError&) {
    throw;
  } catch (const UsageError&) {
    throw;
  } catch (const WaitInterrupted& error) {
    throw CommError(origin(), name_of(kind), name_of(kind), " was not completed: ", error.what(), '.');
  } catch (const Backend::Mismatch& error) {
    throw CommError(origin(), name_of(kind), "the ranks of group '", options.name, "' disagree: ", error.what(), '.');
  } catch (const std::exception& error) {
    broken_ = true;
    std::string words = explain(name_of(kind) + label.in_brackets(), error.what());
    if (words.find("has left the group") != std::string::npos) words += advice_on_absence(label);
    throw CommError(origin(), name_of(kind), words);
  }
}

std::string Group::Impl::explain(const std::string& what, const std::string& backend_words) const {
  const bool timed_out = backend_words.find("imed out") != std::string::npos;
  if (backend_words.find("Duplicate GPU") != std::string::npos) {
    return text(
        what, " was not started: two ranks use one GPU, which NCCL refuses. Give each process a GPU of its own ",
        "(hasten launch does; look at CUDA_VISIBLE_DEVICES), or choose HASTEN_BACKEND=gloo (", backend_words, ").");
  }
  // A failing rank writes its words before it closes its connections, so they are there by now. A rank that was killed
  // leaves none. The short wait covers a store that is slower than the connection.
  const auto deadline = Clock::now() + std::chrono::milliseconds(timed_out || rejoined_ ? 0 : 500);
  if (run_store) limit_answers(run_store->port(), std::chrono::seconds(5));  // its process may be what is stopped
  std::optional<std::string> message;
  while (!(message = failure()) && Clock::now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  if (run_store) limit_answers(run_store->port(), timeout());  // ranks that meet again go on with this connection
  if (message == kStoreIsGone) return text(what, " was not completed: ", backend_words, "; and ", *message);
  if (message) return text(what, " was not completed because ", *message);
  if (!timed_out && backend_words.find("NCCL") != std::string::npos) {
    return text(what, " was not completed, for NCCL failed. NCCL_DEBUG=INFO shows more (", backend_words, ").");
  }
  if (timed_out) {
    return text(what, " was not completed within ", seconds(timeout()),
                ": a rank did not make the same call, or is still busy. Compare what the ranks are doing, or "
                "raise the "
                "timeout (",
                backend_words, ").");
  }
  if (const std::string ended = recorder_ ? recorder_->words_of_ended() : ""; !ended.empty()) {
    return text(what, " was not completed because ", ended, " (", backend_words, ").");
  }
  return text(what,
              " was not completed because a peer closed its connection without a word: it ended or was killed. "
              "Look at the launcher's report and the output of the other ranks (",
              backend_words, ").");
}

void Group::Impl::fail(const std::string& message) noexcept {
  try {
    if (run_store) run_store->set_once(kFailureKey, text("rank ", rank, " failed: ", message));
  } catch (const std::exception&) {
    // The store is gone: its server has ended, and no rank is left to notify.
  }
  failed_ = true;
  close_backends();
  for (const auto& child : children()) child->fail(message);
}

void Group::Impl::close_after_peer() noexcept {
  if (failed_.exchange(true)) return;
  close_backends();
}

void Group::Impl::add_child(const std::shared_ptr<Impl>& child) {
  const std::lock_guard lock(children_mutex_);
  std::erase_if(children_, [](const auto& group) { return group.expired(); });
  children_.push_back(child);
}

std::vector<std::shared_ptr<Group::Impl>> Group::Impl::children() const {
  const std::lock_guard lock(children_mutex_);
  std::vector<std::shared_ptr<Impl>> living;
  for (const auto& child : children_) {
    if (auto group = child.lock()) living.push_back(std::move(group));
  }
  return living;
}

std::optional<std::string> Group::Impl::failure() const noexcept {
  try {
    if (run_store) return run_store->get(kFailureKey);
  } catch (const std::exception&) {
    return kStoreIsGone;
  }
  return std::nullopt;
}

void Group::Impl::track_abandoned(CallName kind, std::vector<Backend::Started> transfers) noexcept {
  const std::lock_guard lock(orphans_mutex_);
  for (auto& transfer : transfers) abandoned_.push_back({kind, backends_in_use(), std::move(transfer)});
}

bool Group::Impl::OpenCall::is_done() noexcept {
  std::erase_if(transfers, [this](const auto& end_on_device) {
    try {
      const auto took = end_on_device();
      took_ns = std::max(took_ns, took.value_or(0));
      return took.has_value();
    } catch (const std::exception&) {
      return true;  // the device is lost, as the next operation will tell
    }
  });
  return transfers.empty();
}

void Group::Impl::end_when_done(CallEnd end, const std::vector<Backend::Started>& transfers) noexcept {
  std::vector<Backend::Transfer::EndOnDevice> on_device;
  if (end.is_recorded() && made_device_ != nullptr) {
    for (const auto& transfer : transfers) {
      if (auto end_on_device = transfer->end_on_device()) on_device.push_back(std::move(end_on_device));
    }
  }
  if (on_device.empty()) return end.end();
  const std::lock_guard lock(open_mutex_);
  open_.push_back({std::move(end), std::move(on_device)});
}

void Group::Impl::end_done_calls(bool all) noexcept {
  const std::lock_guard lock(open_mutex_);
  for (auto call = open_.begin(); call != open_.end();) {
    if (call->is_done()) {
      call->end.end_on_device(call->took_ns);
      call = open_.erase(call);
    } else if (all) {
      ++call;
    } else {
      return;
    }
  }
}

void Group::Impl::reap() noexcept {
  if (made_device_ != nullptr) end_done_calls(false);
  const std::lock_guard lock(orphans_mutex_);
  const auto ended = [this](AbandonedTransfer& transfer) {
    if (!transfer.transfer->done()) return false;
    try {
      transfer.transfer->wait();
    } catch (const std::exception& error) {
      logger_.error(text("a ", name_of(transfer.kind), " that nobody waited for failed: ", error.what()),
                    {.main_process_only = false});
    }
    return true;
  };
  abandoned_.erase(std::remove_if(abandoned_.begin(), abandoned_.end(), ended), abandoned_.end());
}

namespace detail {

void Operation::abandon(std::shared_ptr<Operation> operation) noexcept {
  if (!operation) return;
  auto& target = *operation;
  target.on_abandon(std::move(operation));
}

bool Transfers::done() {
  return std::all_of(transfers_.begin(), transfers_.end(), [](auto& transfer) { return transfer->done(); });
}

void Transfers::wait() {
  if (is_of_an_earlier_meeting()) {
    throw CommError(group_->origin(), name_of(kind_), name_of(kind_),
                    " was not completed: a rank has ended, and the ranks have met again since.");
  }
  at::RecordFunction profiled(at::RecordScope::USER_SCOPE);
  if (profiled.isActive()) profiled.before("wait for a collective");
  end_.wait();
  for (auto& transfer : transfers_) group_->wait(*transfer, kind_, label_);
  group_->end_when_done(std::move(end_), transfers_);
}

void Transfers::on_abandon(std::shared_ptr<Operation>) noexcept {
  if (is_of_an_earlier_meeting()) return;
  group_->end_when_done(std::move(end_), transfers_);
  group_->track_abandoned(kind_, std::move(transfers_));
}

}  // namespace detail

Group::Group() : impl_(std::make_shared<Impl>(0, 1, GroupOptions{})) {}

Group Group::connect(const Store& store, int rank, int world_size, const GroupOptions& given) {
  if (world_size < 1 || rank < 0 || rank >= world_size) {
    throw UsageError(Origin{"comm"}, "rank ", rank, " of a world of ", world_size,
                     ": ranks go from 0 to world_size - 1.");
  }
  const GroupOptions options = with_environment(given, Environment::current());
  const bool check = *options.check;
  auto impl = std::make_shared<Impl>(rank, world_size, options);
  if (world_size == 1) return Group(std::move(impl), check);
  if (options.backend == BackendKind::kNccl && !has_device_backend()) {
    throw UsageError(impl->origin(),
                     "backend nccl was asked for, but this libtorch is built without CUDA or sees no GPU. "
                     "Use gloo, or a CUDA build of libtorch.");
  }
  if (options.backend == BackendKind::kMpi && !mpi_is_built()) {
    throw UsageError(impl->origin(),
                     "backend mpi was asked for, but this hasten is built without MPI. Build it with "
                     "-DHASTEN_WITH_MPI=ON (apt-get install libopenmpi-dev), or use gloo.");
  }
  impl->run_store = store;
  if (!options.lazy) impl->connect();
  return Group(std::move(impl), check);
}

int Group::rank() const noexcept {
  return impl_->rank;
}
int Group::world_size() const noexcept {
  return impl_->world_size;
}
const GroupOptions& Group::options() const noexcept {
  return impl_->options;
}
bool Group::checked() const noexcept {
  return check_;
}
Group Group::with_check(bool check) const {
  Group group = *this;
  group.check_ = check;
  return group;
}
Group Group::with_observer(CollectiveObserver observer) const {
  Group group = *this;
  group.observer_ = observer ? std::make_shared<const CollectiveObserver>(std::move(observer)) : nullptr;
  return group;
}

std::string Group::backend_name() const {
  return impl_->backend_name();
}

at::Tensor Group::buffer(int64_t numel, const at::TensorOptions& options) const {
  if (impl_->alone() || !impl_->is_connected() || !options.device().is_cpu()) return torch::empty({numel}, options);
  const auto item = static_cast<int64_t>(options.dtype().itemsize());
  return impl_->cpu().allocate(numel * item).view(c10::typeMetaToScalarType(options.dtype()));
}

std::optional<Group> Group::subgroup(const std::vector<int>& ranks, Site site) const {
  return subgroup(ranks, SubgroupOptions{}, site);
}

std::optional<Group> Group::subgroup(const std::vector<int>& ranks, const SubgroupOptions& given, Site site) const {
  for (const int rank : ranks) impl_->check_rank(rank, "a member", OpType::kSubgroup);
  if (ranks.empty() || std::set<int>(ranks.begin(), ranks.end()).size() != ranks.size()) {
    throw UsageError(impl_->origin(), "subgroup of ranks [", join(ranks), "]: name at least one rank, and each once.");
  }
  if (impl_->alone()) return *this;
  begin(OpType::kSubgroup);
  const RecordedCall call = impl_->record(OpType::kSubgroup, site, {});
  if (check_) {
    impl_->agree(Fingerprint::of(OpType::kSubgroup, site).with_sizes({ranks.begin(), ranks.end()}));
  }
  return child(ranks, text("/", impl_->subgroups_made++, '[', join(ranks, ","), ']'), given);
}

std::optional<Group> Group::split(int color, int key, const SubgroupOptions& options, Site site) const {
  if (impl_->alone()) return color < 0 ? std::nullopt : std::optional(*this);
  at::Tensor all = torch::empty({world_size(), 2}, at::kInt);
  all_gather_into_(all, torch::tensor({color, key}, at::kInt), site);
  std::vector<SplitKey> by_rank;
  for (int rank = 0; rank < world_size(); ++rank) {
    const int* row = all.const_data_ptr<int>() + 2 * rank;
    by_rank.push_back({row[0], row[1]});
  }
  const int number = impl_->subgroups_made++;
  if (color < 0) return std::nullopt;
  return child(split_ranks(by_rank, color), text("/", number, ':', color), options);
}

void Group::connect_backends() const {
  impl_->check_open(OpType::kBarrier);
  impl_->connect();
}

std::optional<Group> Group::child(const std::vector<int>& ranks, const std::string& suffix,
                                  const SubgroupOptions& given) const {
  GroupOptions options = impl_->options;
  options.check = check_;
  options.lazy = given.lazy;
  options.name += suffix;
  const auto mine = std::find(ranks.begin(), ranks.end(), rank());
  if (mine == ranks.end()) return std::nullopt;
  const int place = static_cast<int>(mine - ranks.begin()), size = static_cast<int>(ranks.size());
  if (impl_->stands_in()) {
    auto part = std::make_shared<Impl>(place, size, options);
    part->stand_in(impl_->meetings);
    impl_->add_child(part);
    return Group(std::move(part), check_);
  }
  auto group = connect(*impl_->run_store, place, size, options);
  group.impl_->run_store = impl_->run_store;
  group.impl_->meetings = impl_->meetings;
  impl_->add_child(group.impl_);
  return group;
}

void Group::set_timeout(std::chrono::milliseconds timeout) const {
  impl_->set_timeout(timeout);
}

void Group::fail(const std::string& message) const noexcept {
  impl_->fail(message);
}

std::optional<Store> Group::store() const {
  return impl_->run_store;
}

std::optional<std::string> Group::failure() const noexcept {
  return impl_->failure();
}

}  // namespace hasten::comm
