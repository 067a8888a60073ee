// See recorded_call.h.
#include "comm/group/recorded_call.h"

#include <array>
#include <exception>
#include <string>
#include <utility>

#include "hasten/comm/types/purpose.h"
#include "hasten/core/text.h"

namespace hasten::comm {
namespace {

RecordedCall*& current_call() noexcept {
  thread_local RecordedCall* call = nullptr;
  return call;
}

// PyTorch's names, as literals.
const char* dtype_name(at::ScalarType dtype) noexcept {
  static const auto* const names = [] {
    auto* const all = new std::array<std::string, static_cast<size_t>(at::ScalarType::NumOptions)>;
    for (size_t i = 0; i < all->size(); ++i) {
      const auto one = static_cast<at::ScalarType>(i);
      try {
        (*all)[i] = c10::getDtypeNames(one).first;
      } catch (const std::exception&) {
        (*all)[i] = c10::toString(one);  // a type without a name in Python
      }
    }
    return all;
  }();
  const auto place = static_cast<size_t>(dtype);
  return place < names->size() ? (*names)[place].c_str() : "?";
}

flight::SizesRule rule_of(OpType type) noexcept {
  switch (describe_collective(type).sizes) {
    case SizeRule::kEqual:
      return flight::SizesRule::kEqual;
    case SizeRule::kFirstMayDiffer:
      return flight::SizesRule::kFirstMayDiffer;
    default:
      return flight::SizesRule::kNone;
  }
}

flight::CallFacts facts_of(int group, OpType type, const std::source_location& site, const RecordedFacts& given) {
  flight::CallFacts facts{.kind = given.kind,
                          .group = group,
                          .label = {.operation = name_of(type)},
                          .rule = rule_of(type),
                          .root = given.root,
                          .peer = given.peer,
                          .tag = given.tag,
                          .file = site.file_name(),
                          .line = site.line()};
  if (given.kind == flight::CallKind::kMeeting) facts.label.operation = "connect";
  if (given.kind == flight::CallKind::kReceive) facts.label.operation = "receive";
  if (given.op) facts.label.reduction = name_of(*given.op);
  if (given.tensor != nullptr && given.tensor->defined()) {
    facts.label.dtype = dtype_name(given.tensor->scalar_type());
    facts.sizes = {given.tensor->sizes().data(), given.tensor->sizes().size()};
  }
  const auto purpose = Purpose::current();
  facts.purpose = purpose.text;
  facts.purpose_number = purpose.number;
  return facts;
}

// "all_reduce(mean) of float32 [73] for gradients, bucket 0"
std::string event_name(const flight::CallFacts& facts) {
  std::string message = facts.label.operation;
  if (facts.label.reduction != nullptr) message += text('(', facts.label.reduction, ')');
  if (facts.label.dtype != nullptr) message += text(" of ", facts.label.dtype, " [", join(facts.sizes), ']');
  if (facts.purpose == nullptr) return message;
  message += text(" for ", facts.purpose);
  return facts.purpose_number < 0 ? message : text(message, ' ', facts.purpose_number);
}

}  // namespace

RecordedCall::RecordedCall(flight::Recorder* recorder, int group, OpType type, const std::source_location& site,
                           const RecordedFacts& facts) noexcept {
  const bool is_profiled = profiled_.isActive();
  const bool is_recorded = recorder != nullptr && group >= 0;
  if (!is_profiled && !is_recorded) return;
  const flight::CallFacts all = facts_of(group, type, site, facts);
  if (is_profiled) profiled_.before(event_name(all));
  if (!is_recorded) return;
  tickets_.first = recorder->post(all);
  enter(recorder);
}

RecordedCall::RecordedCall(flight::Recorder* recorder, int group, const std::source_location& site,
                           const std::vector<RecordedFacts>& messages) noexcept {
  if (profiled_.isActive()) profiled_.before(text("batch_send_recv of ", messages.size(), " messages"));
  if (recorder == nullptr || group < 0 || messages.empty()) return;
  tickets_.others.reserve(messages.size() - 1);
  for (const RecordedFacts& message : messages) {
    const flight::Ticket ticket = recorder->post(facts_of(group, OpType::kSend, site, message));
    if (&message == messages.data()) {
      tickets_.first = ticket;
    } else {
      tickets_.others.push_back(ticket);
    }
  }
  enter(recorder);
}

void RecordedCall::enter(flight::Recorder* recorder) noexcept {
  recorder_ = recorder;
  outer_ = std::exchange(current_call(), this);
}

RecordedCall::~RecordedCall() {
  if (recorder_ == nullptr) return;
  current_call() = outer_;
  if (tickets_.first.sequence != 0) CallEnd(recorder_, std::move(tickets_)).end();
}

CallEnd RecordedCall::take() noexcept {
  RecordedCall* const call = current_call();
  if (call == nullptr || call->tickets_.first.sequence == 0) return {};
  call->tickets_.each([call](flight::Ticket ticket) { call->recorder_->go_on(ticket); });
  return {call->recorder_, std::exchange(call->tickets_, {})};
}

}  // namespace hasten::comm
