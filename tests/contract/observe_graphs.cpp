// SPDX-License-Identifier: Apache-2.0
// Observed: what the memory of graphs takes and gives back.
#include "support/observe.hpp"

namespace weir::testing_support { namespace {

WEIR_OBSERVE(graph_memory) {
  const table& cu = *fixture.cu;
  const auto figures = [&](const std::string& when) {
    std::string all;
    for (int attribute = 0; attribute < 4; ++attribute) {
      std::uint64_t bytes = 0;
      cu.device_get_graph_mem_attribute(fixture.device,
                                        static_cast<CUgraphMem_attribute>(attribute), &bytes);
      all += std::to_string(bytes) + " ";
    }
    facts.text("used, high, reserved, high " + when, all);
  };
  figures("at first");
  const CUstream stream = fixture.new_stream();
  CUgraph graph = nullptr;
  cu.graph_create(&graph, 0);
  CUDA_MEM_ALLOC_NODE_PARAMS request{};
  request.poolProps = fixture.pool_properties();
  request.bytesize = 10 * mib;
  CUgraphNode node = nullptr;
  CUgraphNode freeing = nullptr;
  facts.result("add alloc node", cu.graph_add_mem_alloc_node(&node, graph, nullptr, 0, &request));
  facts.number("alignment of its address",
               static_cast<std::int64_t>(request.dptr & (~request.dptr + 1)));
  figures("after the alloc node");
  CUgraphExec exec = nullptr;
  facts.result("instantiate", cu.graph_instantiate(&exec, graph, 0));
  figures("after instantiate");
  CUgraphExec second = nullptr;
  facts.result("instantiate a second time", cu.graph_instantiate(&second, graph, 0));
  if (second != nullptr) cu.graph_exec_destroy(second);
  cu.graph_launch(exec, stream);
  cu.stream_synchronize(stream);
  figures("after launch");
  facts.result("launch again without a free", cu.graph_launch(exec, stream));
  facts.result("mem_free of graph memory", cu.mem_free(request.dptr));
  figures("after mem_free");
  facts.result("launch again", cu.graph_launch(exec, stream));
  facts.result("mem_free_async of graph memory", cu.mem_free_async(request.dptr, stream));
  facts.result("mem_free_async of it twice", cu.mem_free_async(request.dptr, stream));
  cu.stream_synchronize(stream);
  figures("after mem_free_async and synchronize");
  facts.result("free node added afterwards",
               cu.graph_add_mem_free_node(&freeing, graph, &node, 1, request.dptr));
  facts.result("a second free node",
               cu.graph_add_mem_free_node(&freeing, graph, &node, 1, request.dptr));
  facts.result("exec destroy", cu.graph_exec_destroy(exec));
  figures("after exec destroy");
  facts.result("graph destroy", cu.graph_destroy(graph));
  figures("after graph destroy");
  facts.result("trim", cu.device_graph_mem_trim(fixture.device));
  figures("after trim");
  std::uint64_t value = 5;
  facts.result("set used high to 5", cu.device_set_graph_mem_attribute(
                                         fixture.device, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &value));
  value = 0;
  facts.result("set used high to 0", cu.device_set_graph_mem_attribute(
                                         fixture.device, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &value));
  facts.result("set reserved high to 0",
               cu.device_set_graph_mem_attribute(fixture.device,
                                                 CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, &value));
  figures("after the marks were reset");
}

}  // namespace
}  // namespace weir::testing_support
