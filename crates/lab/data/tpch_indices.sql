-- What MySQL makes of the foreign keys of TPC-H, after the tables are filled.
create index l_part on lineitem (l_partkey);
create index o_customer on orders (o_custkey);
create index ps_supplier on partsupp (ps_suppkey);
create index c_nation on customer (c_nationkey);
create index s_nation on supplier (s_nationkey);
analyze;
