// What the engine knows, as rows of the catalog.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/catalog/catalog.h"
#include "server/engine/engine.h"

namespace cairn::node {

// A row has one writer, so that none overwrites what another knows better: a part's is its owner, all others
// are the job's home, or the node that is alone. `holder`: this node's name, for the parts that are resident here. Each row takes the next number
// of `*sequence`, its place in the order of all rows.
std::vector<catalog::Row> RowsOf(const engine::Engine::Description& description,
                                 const std::string& holder, int64_t* sequence);

}  // namespace cairn::node
