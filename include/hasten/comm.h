// The public headers of room comm: collectives, messages, groups, meshes and memory that the ranks of a host share. A program may include single ones.
#pragma once

#include "hasten/comm/group/group.h"
#include "hasten/comm/mesh/device_mesh.h"
#include "hasten/comm/messages/messages.h"
#include "hasten/comm/nested/nested.h"
#include "hasten/comm/nested/nested_operations.h"
#include "hasten/comm/nested/objects.h"
#include "hasten/comm/shared_region.h"
#include "hasten/comm/store/store.h"
#include "hasten/comm/types/group_options.h"
#include "hasten/comm/types/work.h"
