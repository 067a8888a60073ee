// The functions that every agent serves; see operators.h.
#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "hasten/core/error.h"
#include "hasten/rpc/agent.h"
#include "rpc/agent_core.h"
#include "rpc/bridge.h"
#include "rpc/operators.h"

namespace hasten::rpc {

Functions own_functions(AgentCore& core) {
  return core.make_own_functions();
}

Functions AgentCore::make_own_functions() {
  Functions functions;
  functions.add("hasten.gather", [this](const std::string& key, const std::string& name, const std::string& value,
                                        const std::vector<std::string>& names) {
    const Promise<Gathered> mine;
    std::optional<Gathering> ended;
    std::vector<std::string> awaited;
    {
      const std::lock_guard lock(gather_mutex_);
      Gathering& gathering = gatherings_[key];
      gathering.values[name] = value;
      gathering.waiting.push_back(mine);
      for (const std::string& other : names) {
        if (!gathering.values.contains(other)) awaited.push_back(other);
      }
      gathering.awaited = awaited;
      if (awaited.empty()) {
        ended = std::move(gathering);
        gatherings_.erase(key);
      }
    }
    if (ended) {
      for (const auto& one : ended->waiting) one.set(Gathered{ended->values, ""});
    }
    for (const std::string& other : awaited) expect_in_gathering(other);
    return mine.future();
  });
  functions.add_raw("hasten.fetch", [](const std::shared_ptr<detail::ServedCall>& call) {
    Reader reader(call->packed(), call->core());
    const std::string expected = reader.string();
    const detail::Object& object = call->object();
    if (object.encode == nullptr)
      throw UsageError({"rpc"}, "to_here() of a ", object.type,
                       ", which cannot travel. Call its member functions instead.");
    if (object.description != expected)
      throw UsageError({"rpc"}, "to_here() as ", expected, " of a value that is ", object.description, ".");
    detail::Packed packed;
    Writer writer(packed);
    object.encode(writer, object.value.get());
    call->reply(std::move(packed));
  });
  functions.add("hasten.join", [] {});
  functions.add("hasten.join_context", [this](int64_t context) {
    return bridge_ != nullptr && bridge_->add_member(context, rpc::call().caller.id);
  });
  functions.add_raw("hasten.backward", [](const std::shared_ptr<detail::ServedCall>& call) {
    Reader reader(call->packed(), call->core());
    const AutogradContext context = detail::read<AutogradContext>(reader);
    const bool retain_graph = detail::read<bool>(reader);
    context.backward({detail::object_as<at::Tensor>(call->object())}, {.retain_graph = retain_graph});
    call->reply({});
  });
  add_optimizers(functions);
  if (options_.serve_operators) add_operators(functions);
  return functions;
}

// A loss is noticed over a connection, so the first message of a worker that is awaited is not waited for.
void AgentCore::expect_in_gathering(const std::string& name) {
  const auto rank = workers_.find(name);
  if (!rank || *rank == rank_) return;
  if (!messages_->has_connection(*rank)) {
    Head probe;
    probe.kind = static_cast<uint16_t>(Kind::kCancel);
    send(*rank, probe);
  }
  if (!workers_.is_here(*rank)) fail_gatherings(*rank);
}

// Ends the gatherings that the worker has not come to.
void AgentCore::fail_gatherings(int gone) {
  const std::string& name = workers_[gone].info.name;
  std::vector<Gathering> failed;
  {
    const std::lock_guard lock(gather_mutex_);
    for (auto one = gatherings_.begin(); one != gatherings_.end();) {
      const auto& awaited = one->second.awaited;
      const auto next = std::next(one);
      if (std::find(awaited.begin(), awaited.end(), name) != awaited.end())
        failed.push_back(std::move(gatherings_.extract(one).mapped()));
      one = next;
    }
  }
  const std::string why = messages_->why_gone(gone);
  for (const auto& one : failed) {
    for (const auto& waiting : one.waiting)
      waiting.set(Gathered{{}, text(described(gone), " is gone: ", why.empty() ? "it has left" : why)});
  }
}

void AgentCore::join_context(int maker, int64_t context, std::function<void(std::optional<bool>)> answered) {
  const Calls calls(shared_from_this(), {});
  try {
    calls.call_async<bool>(maker, "hasten.join_context", context)
        .add_done_callback([answered](const Future<bool>& joined) {
          answered(joined.has_error() ? std::nullopt : std::optional(joined.value()));
        });
  } catch (const Error&) {
    answered(std::nullopt);  // the agent is being closed
  }
}

}  // namespace hasten::rpc
