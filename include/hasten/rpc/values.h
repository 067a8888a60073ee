// Which types may be arguments and results of calls, and how each is written.
//
// Numbers, enums, strings, the standard's containers, tensors, plain structs of up to 24 members, and classes with
// `friend auto hasten_fields(T& t) { return std::tie(t.a, t.b); }`. A Codec has three functions: write, read, and
// describe, whose text makes up a function's signature: both sides compare it before anything is sent.
#pragma once

#include "hasten/rpc/detail/codec.h"
#include "hasten/rpc/detail/containers.h"
