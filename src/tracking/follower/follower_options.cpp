// See follower_options.h.
#include "hasten/tracking/follower/follower_options.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>

#include "hasten/core/error.h"
#include "hasten/core/file.h"
#include "tracking/journal/json.h"

namespace hasten::tracking {
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
    sinks.push_back(
        {.name = name->as_string(), .options = options != nullptr ? *options : core::Value(), .tracker = {}});
  }
  return sinks;
}

std::filesystem::path sinks_path(const std::filesystem::path& journal) {
  const std::string stem = journal.stem().string();
  const size_t dash = stem.find('-');
  return journal.parent_path() / ("trackers" + (dash == std::string::npos ? "" : stem.substr(dash)) + ".json");
}

}  // namespace

std::filesystem::path ack_path(const std::filesystem::path& journal, const std::string& name) {
  // journal-rank3.jsonl -> NAME-rank3.ack
  const std::string stem = journal.stem().string();
  const size_t dash = stem.find('-');
  return journal.parent_path() / (name + (dash == std::string::npos ? "" : stem.substr(dash)) + ".ack");
}

SinkState read_ack(const std::filesystem::path& journal, const std::string& name) {
  const auto path = ack_path(journal, name);
  SinkState state{.name = name};
  const auto bytes = core::read_file(path);
  if (!bytes) return state;
  const auto body = read_json(*bytes);
  const core::Value* part = body ? body->find("part") : nullptr;
  const core::Value* offset = body ? body->find("offset") : nullptr;
  if (part == nullptr || offset == nullptr || !part->is_int() || !offset->is_int()) {
    throw DataError(Origin{"tracking"}, path, path,
                    " is no acknowledgement of a tracker; expected JSON with part and offset. "
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
    throw DataError(Origin{"tracking"}, path, path,
                    " cannot be written: ", failed ? failed.message() : std::strerror(errno),
                    ". Make room in the run's folder.");
  }
}

Record read_start(const std::filesystem::path& journal) {
  auto start = first_record(journal);
  if (start && start->op == "start") return *std::move(start);
  throw DataError(Origin{"tracking"}, journal, journal,
                  " does not begin with a \"start\" record; expected the journal of a run. Name its first part.");
}

void write_sinks(const std::filesystem::path& journal, const std::vector<SinkConfig>& sinks) {
  core::Value list = core::Value::list();
  for (const SinkConfig& sink : sinks)
    list.push_back(core::Value::map({{"name", sink.name}, {"options", sink.options}}));
  std::string line;
  append_json(line, list);
  const auto path = sinks_path(journal);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << line << '\n';
  file.close();
  if (!file)
    throw DataError(Origin{"tracking"}, path, path, " cannot be written: ", std::strerror(errno),
                    ". Make room in the run's folder.");
}

std::vector<SinkConfig> read_sinks(const std::filesystem::path& journal, const Registry& registry) {
  if (const auto list = read_json(core::read_file(sinks_path(journal)).value_or(""))) return sinks_of(&*list, registry);
  const Record start = read_start(journal);
  return sinks_of(start.body.find("trackers"), registry);
}

}  // namespace hasten::tracking
