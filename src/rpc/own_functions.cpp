// The functions that every agent serves; see operators.h.
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
  using Values = std::map<std::string, std::string>;
  Functions functions;
  functions.add("hasten.gather",
                [this](const std::string& key, const std::string& name, const std::string& value, int64_t count) {
                  const Promise<Values> mine;
                  Gathering complete;
                  {
                    const std::lock_guard lock(gather_mutex_);
                    Gathering& gathering = gatherings_[key];
                    gathering.values[name] = value;
                    gathering.waiting.push_back(mine);
                    if (static_cast<int64_t>(gathering.waiting.size()) < count) return mine.future();
                    complete = std::move(gathering);
                    gatherings_.erase(key);
                  }
                  for (const auto& one : complete.waiting) one.set(complete.values);
                  return mine.future();
                });
  functions.add_raw("hasten.fetch", [](const std::shared_ptr<detail::ServedCall>& call) {
    Reader reader(call->packed(), call->core());
    const std::string wanted = reader.string();
    const detail::Object& object = call->object();
    if (object.encode == nullptr)
      throw UsageError({"rpc"}, "to_here() of a ", object.type,
                       ", which cannot travel. Call its member functions instead.");
    if (object.description != wanted)
      throw UsageError({"rpc"}, "to_here() as ", wanted, " of a value that is ", object.description, ".");
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
