// See follower.h.
#include "hasten/tracking/follower.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "hasten/core/error.h"
#include "tracking/json.h"
#include "tracking/sink.h"

namespace hasten::tracking {

std::filesystem::path ack_path(const std::filesystem::path& journal, const std::string& name) {
  // journal-rank3.jsonl -> NAME-rank3.ack
  const std::string stem = journal.stem().string();
  const size_t dash = stem.find('-');
  return journal.parent_path() / (name + (dash == std::string::npos ? "" : stem.substr(dash)) + ".ack");
}

SinkState read_ack(const std::filesystem::path& journal, const std::string& name) {
  const auto path = ack_path(journal, name);
  SinkState state{.name = name};
  std::ifstream file(path);
  if (!file) return state;
  std::ostringstream bytes;
  bytes << file.rdbuf();
  const auto body = read_json(bytes.str());
  const core::Value* part = body ? body->find("part") : nullptr;
  const core::Value* offset = body ? body->find("offset") : nullptr;
  if (part == nullptr || offset == nullptr || !part->is_int() || !offset->is_int()) {
    throw DataError(Origin{"tracking"}, path, path, " is no acknowledgement of a tracker; expected JSON with part and offset. "
                    "Remove it to hand the whole run over again.");
  }
  state.position = {static_cast<int>(part->as_int()), offset->as_int()};
  if (const auto* done = body->find("done")) state.done = done->is_bool() && done->as_bool();
  if (const auto* parked = body->find("parked")) state.parked = parked->is_bool() && parked->as_bool();
  if (const auto* error = body->find("error"); error != nullptr && error->is_string()) state.error = error->as_string();
  if (const auto* own = body->find("state")) state.state = *own;
  return state;
}

void write_ack(const std::filesystem::path& journal, const SinkState& state) {
  const auto path = ack_path(journal, state.name);
  std::string line;
  append_json(line, core::Value::map({{"part", state.position.part},
                                      {"offset", state.position.offset},
                                      {"done", state.done},
                                      {"parked", state.parked},
                                      {"error", state.error},
                                      {"state", state.state}}));
  const std::filesystem::path fresh = text(path.string(), ".new");
  std::ofstream file(fresh, std::ios::binary | std::ios::trunc);
  file << line << '\n';
  file.close();
  std::error_code failed;
  if (file) std::filesystem::rename(fresh, path, failed);
  if (!file || failed) {
    throw DataError(Origin{"tracking"}, path, path, " cannot be written: ", failed ? failed.message() : std::strerror(errno),
                    ". Make room in the run's folder.");
  }
}

struct Follower::Impl {
  std::shared_ptr<SinkContext> context = std::make_shared<SinkContext>();
  std::vector<std::shared_ptr<Sink>> sinks;
};

namespace {

// The journal's first record, once it is there.
std::optional<Record> first_record(const std::filesystem::path& journal) {
  JournalReader reader(journal);
  for (int i = 0; i < 16; ++i) {
    auto record = reader.next();
    if (!record || record->op == "start") return record;
  }
  return std::nullopt;
}

std::vector<SinkConfig> sinks_of(const core::Value* trackers, const Registry& registry) {
  std::vector<SinkConfig> sinks;
  if (trackers == nullptr || !trackers->is_list()) return sinks;
  for (const core::Value& tracker : trackers->as_list()) {
    const core::Value* name = tracker.find("name");
    const core::Value* options = tracker.find("options");
    if (name == nullptr || !name->is_string()) continue;
    const auto* entry = registry.find(name->as_string());
    if (entry == nullptr || !entry->is_built_in) continue;  // of the program's own, on a thread of it
    sinks.push_back({.name = name->as_string(), .options = options != nullptr ? *options : core::Value(), .tracker = {}});
  }
  return sinks;
}

std::filesystem::path sinks_path(const std::filesystem::path& journal) {
  const std::string stem = journal.stem().string();
  const size_t dash = stem.find('-');
  return journal.parent_path() / ("trackers" + (dash == std::string::npos ? "" : stem.substr(dash)) + ".json");
}

Record start_of(const std::filesystem::path& journal) {
  auto start = first_record(journal);
  if (start && start->op == "start") return *std::move(start);
  throw DataError(Origin{"tracking"}, journal, journal, " does not begin with a \"start\" record; expected the journal of a run. Name its first part.");
}

// Which of the two ways an entry with both is fed: MLflow over REST if the server speaks HTTP.
bool uses_bridge(const RegistryEntry& entry, const Environment& environment) {
  if (entry.python_module.empty()) return false;
  if (!entry.make) return true;
  return !environment.text("MLFLOW_TRACKING_URI").value_or("").starts_with("http");
}

}  // namespace

void write_sinks(const std::filesystem::path& journal, const std::vector<SinkConfig>& sinks) {
  core::Value list = core::Value::list();
  for (const SinkConfig& sink : sinks) list.push_back(core::Value::map({{"name", sink.name}, {"options", sink.options}}));
  std::string line;
  append_json(line, list);
  const auto path = sinks_path(journal);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << line << '\n';
  file.close();
  if (!file) throw DataError(Origin{"tracking"}, path, path, " cannot be written: ", std::strerror(errno), ". Make room in the run's folder.");
}

std::vector<SinkConfig> read_sinks(const std::filesystem::path& journal, const Registry& registry) {
  std::ifstream file(sinks_path(journal));
  std::ostringstream bytes;
  bytes << file.rdbuf();
  if (const auto list = read_json(bytes.str())) return sinks_of(&*list, registry);
  const Record start = start_of(journal);
  return sinks_of(start.body.find("trackers"), registry);
}

Follower::Follower(FollowerOptions options) : impl_(std::make_shared<Impl>()) {
  SinkContext& context = *impl_->context;
  const Record start = start_of(options.journal);
  if (options.sinks.empty()) options.sinks = read_sinks(options.journal, options.registry);
  context.run = read_run_info(start, options.journal.parent_path());
  context.options = std::move(options);
  for (const SinkConfig& config : context.options.sinks) {
    const RegistryEntry* entry = config.tracker ? nullptr : &context.options.registry.at(config.name);
    if (entry != nullptr && config.name == "journal") continue;
    const bool bridge = entry != nullptr && uses_bridge(*entry, context.options.environment);
    impl_->sinks.push_back(bridge ? make_bridge_sink(impl_->context, config) : make_tracker_sink(impl_->context, config));
  }
  // The threads own what they use, so that one that hangs in a client can be left behind.
  for (const auto& sink : impl_->sinks) std::thread([sink] { sink->run(); }).detach();
}

Follower::~Follower() {
  impl_->context->abandoned = true;
  impl_->context->changed.notify_all();
}

void Follower::close() {
  {
    const std::lock_guard lock(impl_->context->mutex);
    impl_->context->closing = true;
  }
  impl_->context->changed.notify_all();
}

bool Follower::is_done() const {
  for (const auto& sink : impl_->sinks) {
    if (!sink->is_over()) return false;
  }
  return true;
}

bool Follower::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(impl_->context->mutex);
  const auto until = std::chrono::steady_clock::now() + timeout;
  // Looked at regularly as well: a sink ends without holding the mutex.
  while (!is_done() && std::chrono::steady_clock::now() < until) {
    impl_->context->changed.wait_for(lock, std::chrono::milliseconds(20));
  }
  for (const auto& sink : impl_->sinks) {
    if (!sink->state().done) return false;
  }
  return true;
}

std::vector<SinkState> Follower::states() const {
  std::vector<SinkState> states;
  for (const auto& sink : impl_->sinks) states.push_back(sink->state());
  return states;
}

}  // namespace hasten::tracking
