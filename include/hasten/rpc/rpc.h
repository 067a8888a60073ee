// All of hasten::rpc.
#pragma once

#include "hasten/rpc/agent.h"
#include "hasten/rpc/autograd.h"
#include "hasten/rpc/distributed_optimizer.h"
#include "hasten/rpc/errors.h"
#include "hasten/rpc/functions.h"
#include "hasten/rpc/future.h"
#include "hasten/rpc/remote_module.h"
#include "hasten/rpc/rref.h"
#include "hasten/rpc/values.h"
