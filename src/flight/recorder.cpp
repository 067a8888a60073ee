// Writing a page; see recorder.h.
#include "hasten/flight/recorder.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "flight/proc.h"
#include "hasten/core/text.h"

namespace hasten::flight {
namespace {

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
  return hash ^ hash >> 29;
}

uint64_t mix(uint64_t hash, const void* pointer) {
  return mix(hash, reinterpret_cast<uintptr_t>(pointer));
}

uint64_t hash_of(std::string_view text) {
  uint64_t hash = 14695981039346656037ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return hash;
}

template <size_t size>
void copy_text(char (&to)[size], std::string_view from) {
  const size_t count = std::min(from.size(), size - 1);
  std::memcpy(to, from.data(), count);
  to[count] = 0;
}

template <size_t size>
void store_text(std::array<std::atomic<char>, size>& to, std::string_view from) {
  const size_t count = std::min(from.size(), size - 1);
  for (size_t i = 0; i < count; ++i) to[i].store(from[i], kRelaxed);
  to[count].store(0, kRelaxed);
}

uint32_t thread_id() {
  thread_local const auto id = static_cast<uint32_t>(syscall(SYS_gettid));
  return id;
}

/// The pages of this process. A child of fork() has memory of its own in their place, so that it writes into no page of
/// its parent's.
struct Pages {
  std::mutex mutex;
  std::vector<void*> mapped;
};

Pages& pages() {
  static Pages* const all = [] {
    pthread_atfork([] { pages().mutex.lock(); }, [] { pages().mutex.unlock(); },
                   [] {
                     for (void* page : pages().mapped) {
                       mmap(page, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
                     }
                     pages().mutex.unlock();
                   });
    return new Pages;  // never destroyed: a fork may come at the very end
  }();
  return *all;
}

MemoryFile file_of(int descriptor) {
  return descriptor < 0 ? MemoryFile::create(kPageLabel, kPageBytes) : MemoryFile::adopt(descriptor, kPageBytes);
}

}  // namespace

int64_t now_ns() noexcept {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

namespace {

// Up to some milliseconds late; a tenth of the price of the exact clock.
int64_t coarse_ns() noexcept {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// Drops calls of a process that was replaced. Its step stays: the launcher compares it with that of the next death.
void drop_calls(Page& page) {
  for (PageGroup& group : page.groups) group.key.store(0, kRelaxed);
  for (PageRecord& record : page.records) record.sequence.store(0, kRelaxed);
  page.now.phase.store(0, kRelaxed);
}

void write_head(Page& page, const PageIdentity& identity, PageState state) {
  drop_calls(page);
  PageHead& head = page.head;
  head.version = kPageVersion;
  head.num_bytes = kPageBytes;
  head.rank = identity.rank;
  head.world_size = identity.world_size;
  head.local_rank = identity.local_rank;
  head.local_world_size = identity.local_world_size;
  head.node_rank = identity.node_rank;
  head.restart_count = identity.restart_count;
  copy_text(head.run, identity.run);
  copy_text(head.run_id, identity.run_id);
  copy_text(head.host, host_name());
  copy_text(head.program, program_name(getpid()));
  head.pid.store(static_cast<uint32_t>(getpid()), kRelaxed);
  head.start_ticks.store(read_process(getpid()).start_ticks, kRelaxed);
  head.state.store(static_cast<uint32_t>(state), kRelaxed);
  page.answer.num_bytes.store(0, kRelaxed);  // of a process that was replaced
  page.now.progress_ns.store(now_ns(), kRelaxed);
  head.magic.store(kPageMagic, std::memory_order_release);
}

}  // namespace

std::string run_name(const std::string& address, int port, int attempt, int process) {
  return text(address, ':', port, " attempt ", attempt, " process ", process);
}

void announce(const MemoryFile& file, const PageIdentity& identity) {
  const Mapping mapping = file.map(Mapping::Access::kReadWrite);
  write_head(*std::launder(reinterpret_cast<Page*>(mapping.data())), identity, PageState::kAnnounced);
}

Recorder::Recorder(const PageIdentity& identity, int file)
    : identity_(identity),
      file_(file_of(file)),
      mapping_(file_.map(Mapping::Access::kReadWrite)),
      page_(std::launder(reinterpret_cast<Page*>(mapping_.data()))) {
  write_head(*page_, identity_, PageState::kRunning);
  const std::lock_guard lock(pages().mutex);
  pages().mapped.push_back(page_);
}

Recorder::~Recorder() {
  const std::lock_guard lock(pages().mutex);
  std::erase(pages().mapped, static_cast<void*>(page_));
}

int Recorder::open_group(const std::string& name, int rank, int size, int64_t timeout_ms) {
  const std::lock_guard lock(mutex_);
  const uint64_t occurrence = occurrences_[name]++;
  const auto free = std::find_if(page_->groups.begin(), page_->groups.end(),
                                 [](const PageGroup& group) { return group.key.load(kRelaxed) == 0; });
  if (free == page_->groups.end()) {
    page_->now.refused_groups.fetch_add(1, kRelaxed);
    return -1;
  }
  free->calls.store(0, kRelaxed);
  free->rank.store(rank, kRelaxed);
  free->size.store(size, kRelaxed);
  free->timeout_ms.store(timeout_ms, kRelaxed);
  store_text(free->name, name);
  free->key.store(mix(mix(hash_of(name), static_cast<uint64_t>(size)), occurrence) | 1, std::memory_order_release);
  return static_cast<int>(free - page_->groups.begin());
}

void Recorder::close_group(int group) noexcept {
  if (group >= 0) page_->groups[static_cast<size_t>(group)].key.store(0, std::memory_order_release);
}

uint16_t Recorder::write_text(const std::string& text) noexcept {
  const uint32_t count = page_->num_texts.load(kRelaxed);
  const std::string_view cut = std::string_view(text).substr(0, kTextBytes - 1);
  for (uint32_t i = 0; i < count; ++i) {
    const auto& known = page_->texts[i];
    const bool same = known[cut.size()].load(kRelaxed) == 0 &&
                      std::equal(cut.begin(), cut.end(), known.begin(),
                                 [](char a, const std::atomic<char>& b) { return a == b.load(kRelaxed); });
    if (same) return static_cast<uint16_t>(i);
  }
  if (count == kNumTexts) return kNoText;
  store_text(page_->texts[count], cut);
  page_->num_texts.store(count + 1, std::memory_order_release);
  return static_cast<uint16_t>(count);
}

template <class Make>
uint16_t Recorder::text_of(uint64_t key, const Make& make) noexcept {
  constexpr size_t kMostTries = 64;
  key |= 1;
  for (size_t i = 0; i < kMostTries; ++i) {
    const Known& known = known_[(key + i) % kNumKeys];
    const uint64_t found = known.key.load(std::memory_order_acquire);
    if (found == key) return known.text.load(kRelaxed);
    if (found == 0) break;
  }
  const std::lock_guard lock(mutex_);
  const uint16_t text = write_text(make());
  for (size_t i = 0; i < kMostTries; ++i) {
    Known& known = known_[(key + i) % kNumKeys];
    const uint64_t found = known.key.load(kRelaxed);
    if (found == key) break;
    if (found != 0) continue;
    known.text.store(text, kRelaxed);
    known.key.store(key, std::memory_order_release);
    break;
  }
  return text;
}

uint16_t Recorder::label_of(const Label& label) noexcept {
  const uint64_t key = mix(mix(mix(1, label.operation), label.reduction), label.dtype);
  return text_of(key, [&] {
    std::string words = label.operation;
    if (label.reduction != nullptr) words += text('(', label.reduction, ')');
    if (label.dtype != nullptr) words += text(" of ", label.dtype);
    return words;
  });
}

uint16_t Recorder::site_of(const char* file, uint32_t line) noexcept {
  return text_of(mix(mix(2, file), line), [&] {
    std::string_view name = file;
    if (const size_t slash = name.rfind('/'); slash != std::string_view::npos) name.remove_prefix(slash + 1);
    return text(name, ':', line);
  });
}

uint16_t Recorder::literal_of(const char* literal) noexcept {
  return literal == nullptr ? kNoText : text_of(mix(3, literal), [&] { return std::string(literal); });
}

uint64_t Recorder::number_of(const CallFacts& facts) noexcept {
  if (facts.kind == CallKind::kMeeting) return 0;
  if (facts.kind == CallKind::kCollective) {
    return page_->groups[static_cast<size_t>(facts.group)].calls.fetch_add(1, kRelaxed) + 1;
  }
  const uint64_t key = mix(mix(mix(static_cast<uint64_t>(facts.kind), static_cast<uint64_t>(facts.group)),
                               static_cast<uint64_t>(facts.peer)),
                           static_cast<uint64_t>(facts.tag)) |
                       1;
  for (size_t i = 0; i < kNumKeys; ++i) {
    Messages& messages = messages_[(key + i) % kNumKeys];
    uint64_t found = messages.key.load(kRelaxed);
    if (found == 0 && messages.key.compare_exchange_strong(found, key, kRelaxed)) found = key;
    if (found == key) return messages.count.fetch_add(1, kRelaxed) + 1;
  }
  return 0;
}

Ticket Recorder::post(const CallFacts& facts) noexcept {
  if (facts.group < 0) return {};
  const uint64_t index = page_->num_records.fetch_add(1, kRelaxed);
  PageRecord& record = page_->records[index % kNumRecords];
  const uint64_t sequence = 2 * index + 2;
  const int64_t now = now_ns();
  record.sequence.store(sequence - 1, kRelaxed);
  std::atomic_thread_fence(std::memory_order_release);
  record.number.store(number_of(facts), kRelaxed);
  record.posted_ns.store(now, kRelaxed);
  record.waited_ns.store(now, kRelaxed);
  record.ended_ns.store(0, kRelaxed);
  record.purpose_number.store(facts.purpose_number, kRelaxed);
  record.group.store(static_cast<uint16_t>(facts.group), kRelaxed);
  record.label.store(label_of(facts.label), kRelaxed);
  record.site.store(site_of(facts.file, facts.line), kRelaxed);
  record.purpose.store(literal_of(facts.purpose), kRelaxed);
  record.kind.store(static_cast<uint8_t>(facts.kind), kRelaxed);
  record.rule.store(static_cast<uint8_t>(facts.rule), kRelaxed);
  record.dims.store(static_cast<uint8_t>(std::min<size_t>(facts.sizes.size(), 255)), kRelaxed);
  record.thread.store(thread_id(), kRelaxed);
  record.root.store(facts.root, kRelaxed);
  record.peer.store(facts.peer, kRelaxed);
  record.tag.store(facts.tag, kRelaxed);
  record.step.store(static_cast<int32_t>(page_->now.step.load(kRelaxed)), kRelaxed);
  const size_t num_sizes = std::min<size_t>(facts.sizes.size(), kNumSizes);
  for (size_t i = 0; i < num_sizes; ++i) record.sizes[i].store(facts.sizes[i], kRelaxed);
  record.sequence.store(sequence, std::memory_order_release);
  page_->now.progress_ns.store(now, kRelaxed);
  return {sequence};
}

PageRecord* Recorder::record_of(Ticket ticket) const noexcept {
  if (ticket.sequence == 0) return nullptr;
  PageRecord& record = page_->records[(ticket.sequence / 2 - 1) % kNumRecords];
  return record.sequence.load(kRelaxed) == ticket.sequence ? &record : nullptr;
}

void Recorder::go_on(Ticket ticket) noexcept {
  PageRecord* const record = record_of(ticket);
  if (record != nullptr) record->waited_ns.store(0, kRelaxed);
}

void Recorder::wait(Ticket ticket) noexcept {
  PageRecord* const record = record_of(ticket);
  if (record != nullptr) record->waited_ns.store(std::max(coarse_ns(), record->posted_ns.load(kRelaxed)), kRelaxed);
}

void Recorder::end(Ticket ticket) noexcept {
  PageRecord* const record = record_of(ticket);
  const int64_t now = now_ns();
  page_->now.progress_ns.store(now, kRelaxed);
  if (record == nullptr) return;
  const int64_t waited = record->waited_ns.load(kRelaxed);
  if (waited > 0) page_->now.waited_ns.fetch_add(now - waited, kRelaxed);
  record->ended_ns.store(now, kRelaxed);
}

// Calls of one stream follow each other. If a rank is late by one time in each of them, their sum on another rank would
// hold that time again and again. So the longest of a step counts.
void Recorder::end_on_device(Ticket ticket, int64_t took_ns) noexcept {
  PageRecord* const record = record_of(ticket);
  if (record != nullptr && took_ns > 0) {
    const std::lock_guard lock(device_mutex_);
    const int32_t step = record->step.load(kRelaxed);
    if (step > device_step_) {
      device_step_ = step;
      device_longest_ns_ = 0;
    }
    const int64_t more = took_ns - device_longest_ns_;
    if (more > 0) {
      page_->now.waited_ns.fetch_add(more, kRelaxed);
      device_longest_ns_ = took_ns;
    }
  }
  go_on(ticket);
  end(ticket);
}

uint32_t Recorder::phase_number(const char* name) noexcept {
  const uint16_t text = literal_of(name);
  return text == kNoText ? 0 : text + uint32_t{1};
}

uint32_t Recorder::enter_phase(uint32_t phase) noexcept {
  PageNow& now = page_->now;
  const int64_t time = now_ns();
  const uint32_t before = now.phase.load(kRelaxed);
  const int64_t spent = time - now.phase_since_ns.load(kRelaxed);
  for (size_t i = 0; before != 0 && i < kNumPhases; ++i) {
    uint32_t place = now.phase_text[i].load(kRelaxed);
    if (place == 0 && now.phase_text[i].compare_exchange_strong(place, before, kRelaxed)) place = before;
    if (place != before) continue;
    now.phase_ns[i].fetch_add(spent, kRelaxed);
    break;
  }
  now.phase_since_ns.store(time, kRelaxed);
  now.phase.store(phase, kRelaxed);
  now.progress_ns.store(time, kRelaxed);
  return before;
}

void Recorder::alive() noexcept {
  page_->now.progress_ns.store(now_ns(), kRelaxed);
}

void Recorder::step(int64_t samples) noexcept {
  PageNow& now = page_->now;
  const int64_t time = now_ns();
  const int64_t before = now.last_step_ns.exchange(time, kRelaxed);
  now.step.fetch_add(1, kRelaxed);
  now.samples.fetch_add(samples, kRelaxed);
  now.progress_ns.store(time, kRelaxed);
  if (before == 0) return;  // the first step holds the start of the program
  now.step_ns[now.num_steps.fetch_add(1, kRelaxed) % kNumSteps].store(time - before, kRelaxed);
}

void Recorder::set_epoch(int64_t epoch) noexcept {
  page_->now.epoch.store(epoch, kRelaxed);
}

void Recorder::set_batch(int64_t batch) noexcept {
  page_->now.batch.store(batch, kRelaxed);
  alive();
}

void Recorder::set_loss(double loss) noexcept {
  page_->now.loss.store(std::bit_cast<uint64_t>(loss), kRelaxed);
}

void Recorder::set_bad(BadValue kind, const std::string& name) noexcept {
  PageNow& now = page_->now;
  const std::lock_guard lock(mutex_);
  if (now.bad_step.load() != 0) {  // the first one counts
    const int64_t epoch = now.bad_epoch.load();
    if (epoch >= 0) return;
    now.bad_epoch.store(-1 - epoch);
    bad_kind_.store(static_cast<uint32_t>(kind), kRelaxed);
    return;
  }
  const uint16_t words = write_text(name);
  bad_kind_.store(static_cast<uint32_t>(kind), kRelaxed);
  now.bad_epoch.store(now.epoch.load(kRelaxed), kRelaxed);
  now.bad_batch.store(now.batch.load(kRelaxed), kRelaxed);
  now.bad_text.store(words == kNoText ? 0 : words + uint32_t{1}, kRelaxed);
  now.bad_step.store(now.step.load(kRelaxed) + 1, std::memory_order_release);
}

void Recorder::clear_bad(BadValue kind) noexcept {
  if (bad_kind_.load(kRelaxed) != static_cast<uint32_t>(kind)) return;
  bad_kind_.store(0, kRelaxed);
  PageNow& now = page_->now;
  // What no report has stays until one has; see page_notes.h.
  if (now.bad_step.load() > 0) now.bad_epoch.store(-1 - now.bad_epoch.load());
  if (now.bad_step.load() < 0) now.bad_step.store(0);
}

void Recorder::set_words_of_ended(std::function<std::string()> words) {
  const std::lock_guard lock(words_mutex_);
  words_of_ended_ = std::move(words);
}

std::string Recorder::words_of_ended() const {
  const std::lock_guard lock(words_mutex_);
  return words_of_ended_ ? words_of_ended_() : "";
}

void Recorder::set_value_checks(const ValueChecks& checks) noexcept {
  gradients_every_.store(checks.gradients_every, kRelaxed);
  stops_.store(checks.stop, kRelaxed);
}

bool Recorder::checks_gradients() const noexcept {
  const int64_t every = gradients_every_.load(kRelaxed);
  return every > 0 && page_->now.step.load(kRelaxed) % every == 0;
}

std::optional<TraceWish> Recorder::new_wish() noexcept {
  const PageWish& wish = page_->wish;
  const uint32_t number = wish.number.load(std::memory_order_acquire);
  if (number == seen_wish_.load(kRelaxed)) return std::nullopt;
  seen_wish_.store(number, kRelaxed);
  TraceWish found{.number = number,
                  .steps = std::max<int64_t>(1, wish.steps.load(kRelaxed)),
                  .with_shapes = wish.options.load(kRelaxed) != 0};
  for (const auto& byte : wish.folder) {
    const char c = byte.load(kRelaxed);
    if (c == 0) break;
    found.folder += c;
  }
  return found;
}

void Recorder::answer_wish(WishState state, const std::string& words) noexcept {
  store_text(page_->wish.words, words);
  page_->wish.state.store(static_cast<uint32_t>(state), std::memory_order_release);
}

void Recorder::set_state(PageState state) noexcept {
  page_->now.progress_ns.store(now_ns(), kRelaxed);  // of a rank that has left: the time of that
  page_->head.state.store(static_cast<uint32_t>(state), std::memory_order_release);
}

namespace {

struct Current {
  std::mutex mutex;
  std::shared_ptr<Recorder> recorder;
};

Current& current() {
  static Current* const one = new Current;  // never destroyed: scopes may end at the very end
  return *one;
}

}  // namespace

void set_process_recorder(std::shared_ptr<Recorder> recorder) {
  const std::lock_guard lock(current().mutex);
  current().recorder = std::move(recorder);
}

std::shared_ptr<Recorder> process_recorder() {
  const std::lock_guard lock(current().mutex);
  return current().recorder;
}

PhaseScope::PhaseScope(const char* name) : PhaseScope(process_recorder(), name) {}

PhaseScope::PhaseScope(std::shared_ptr<Recorder> recorder, const char* name) : recorder_(std::move(recorder)) {
  if (recorder_) outer_ = recorder_->enter_phase(recorder_->phase_number(name));
}

PhaseScope::~PhaseScope() {
  if (recorder_) recorder_->enter_phase(outer_);
}

void alive() {
  if (const auto recorder = process_recorder()) recorder->alive();
}

}  // namespace hasten::flight
